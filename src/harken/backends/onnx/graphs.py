"""Whisper's encoder and decoder as ONNX graphs, built from the weights.

The decoder graph has no rows: for every window it takes some queries, the slots of the KV cache where their keys and
values go, and a mask of the slots that each query attends to. Greedy rows, hypotheses of a beam and drafted tokens
differ in their masks only (see `harken.backends.onnx.session`). The graph writes new keys and values into the cache
itself, so no step copies it.

Source: openai/whisper, model.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harken.backends.onnx.builder import MICROSOFT_DOMAIN, GraphBuilder
from harken.backends.onnx.linear import FLOAT_SCHEME, QuantizationScheme
from harken.backends.onnx.runtimes import BuiltGraph
from harken.backends.rotation import LM_HEAD
from harken.checkpoints.alignment_heads import AlignmentHeads
from harken.contract import Arrays, Floats, Ints
from harken.types import Dims


def encoder(weights: Arrays, dims: Dims) -> BuiltGraph:
    """Build the encoder of one window of T positions.

    Inputs
        mel (1, n_mels, 2 T) float32, T up to n_audio_ctx
    Outputs
        encoder_output (1, T, n_audio_state)
    """
    state, heads = dims.n_audio_state, dims.n_audio_head
    graph = GraphBuilder("encoder")
    layer = _Layers(graph, weights, FLOAT_SCHEME)
    x = graph.input("mel", (1, dims.n_mels, "2T"))
    x = layer.convolution(x, "encoder.conv1", stride=1)
    x = layer.convolution(x, "encoder.conv2", stride=2)
    x = graph.op("Transpose", x, perm=[0, 2, 1])
    length = graph.op("Shape", x, start=1, end=2)
    positions = graph.constant(layer.float32("encoder.positional_embedding"))
    x = graph.op("Add", x, graph.op("Slice", positions, graph.constant([0]), length, graph.constant([0])))
    for i in range(dims.n_audio_layer):
        block = f"encoder.blocks.{i}"
        x = layer.encoder_block(x, block, *layer.encoder_qkv(x, block, heads))
    graph.output(graph.layer_norm(x, weights, "encoder.ln_post"), "encoder_output", (1, "T", state))
    return graph.build()


def streaming_encoder(weights: Arrays, dims: Dims) -> BuiltGraph:
    """Build the encoder of the next W positions of each of A streams, behind H positions of history.

    Inputs
        mel (A, n_mels, 2 W + 3) float32, from two frames before the chunk to one behind it; conv_mask (A, 1, 2 W + 1)
        float32, 0 where the first convolution's output lies before the stream, else 1; positions (A, W) int64, counted
        from the start of the stream; mask (A, 1, 1, H + W) float32, added to the scores; for each layer i
        past_k.i (A, heads, head size, H) and past_v.i (A, heads, H, head size)
    Outputs
        encoder_output (A, W, n_audio_state); for each layer i the keys and values of the chunk,
        key.i (A, heads, head size, W) and value.i (A, heads, W, head size)
    """
    state, heads = dims.n_audio_state, dims.n_audio_head
    head_size = state // heads
    graph = GraphBuilder("streaming_encoder")
    layer = _Layers(graph, weights, FLOAT_SCHEME)
    x = graph.input("mel", ("A", dims.n_mels, "2W+3"))
    conv_mask = graph.input("conv_mask", ("A", 1, "2W+1"))
    positions = graph.input("positions", ("A", "W"), np.int64)
    mask = graph.input("mask", ("A", 1, 1, "H+W"))
    x = graph.op("Mul", layer.convolution(x, "encoder.conv1", stride=1, padding=0), conv_mask)
    x = layer.convolution(x, "encoder.conv2", stride=2, padding=0)
    x = graph.op("Transpose", x, perm=[0, 2, 1])
    x = graph.op("Add", x, layer.embed("encoder.positional_embedding", positions))
    for i in range(dims.n_audio_layer):
        block = f"encoder.blocks.{i}"
        query, key, value = layer.encoder_qkv(x, block, heads)
        keys = graph.op("Concat", graph.input(f"past_k.{i}", ("A", heads, head_size, "H")), key, axis=3)
        values = graph.op("Concat", graph.input(f"past_v.{i}", ("A", heads, "H", head_size)), value, axis=2)
        graph.output(key, f"key.{i}", ("A", heads, head_size, "W"))
        graph.output(value, f"value.{i}", ("A", heads, "W", head_size))
        x = layer.encoder_block(x, block, query, keys, values, mask)
    graph.output(graph.layer_norm(x, weights, "encoder.ln_post"), "encoder_output", ("A", "W", state))
    return graph.build()


def cross_kv(weights: Arrays, dims: Dims) -> BuiltGraph:
    """Build the projection of the encoder's output to the decoder's cross-attention, for one window of T positions.

    Inputs
        encoder_output (1, T, n_audio_state) of this model's encoder, or of another model with the same encoder
    Outputs
        for each decoder layer i, keys cross_k.i and values cross_v.i (1, heads, T, head size)
    """
    heads, head_size = dims.n_text_head, dims.n_text_state // dims.n_text_head
    graph = GraphBuilder("cross_kv")
    layer = _Layers(graph, weights, FLOAT_SCHEME)
    encoder_output = graph.input("encoder_output", (1, "T", dims.n_audio_state))
    for i in range(dims.n_text_layer):
        for part in ("key", "value"):
            projected = layer.split(
                layer.linear(encoder_output, f"decoder.blocks.{i}.cross_attn.{part}"), heads
            )
            graph.output(projected, f"cross_{part[0]}.{i}", (1, heads, "T", head_size))
    return graph.build()


def decoder(
    weights: Arrays,
    dims: Dims,
    scheme: QuantizationScheme,
    alignment_heads: AlignmentHeads,
    vocab_subset: Ints | None = None,
) -> BuiltGraph:
    """Build the decoder of A windows of T positions, with Q queries each over S slots, and logits at P positions.

    Inputs
        tokens, positions (A, Q) int64; slots (A, heads, Q, 4) int64, index in the KV cache of each new key and value;
        group_size (1,) int64, number of queries of a window that are multiplied at once, M, a divisor of Q;
        self_attention_mask (A, 1, Q / M, M, S) float32, added to the scores; logit_positions (P,) int64, indices of
        the queries that get logits, of A * Q; alignment_queries (1,) int64, Q if alignment weights are wanted, else 0;
        cross_attention_mask (A, 1, 1, 1, T) float32, added to the scores; for each layer i cross_k.i and cross_v.i
        (A, heads, 1, T, head size) from the graph `cross_kv`, and past_k.i and past_v.i (A, heads, 1, S, head size)
    Outputs
        logits (P, n_vocab), or (P, len(vocab_subset)); for each layer i present_k.i and present_v.i, the KV cache with
        the new keys and values, which may share the memory of past_k.i and past_v.i; alignment_weights
        (A, alignment heads, Q / M, M, T), softmax weights of these heads in the order of layers, empty if not wanted
    """
    state, heads = dims.n_text_state, dims.n_text_head
    head_size = state // heads
    graph = GraphBuilder("decoder")
    layer = _Layers(graph, weights, scheme)
    tokens = graph.input("tokens", ("A", "Q"), np.int64)
    positions = graph.input("positions", ("A", "Q"), np.int64)
    slots = graph.input("slots", ("A", heads, "Q", 4), np.int64)
    group_size = graph.input("group_size", (1,), np.int64)
    self_attention_mask = graph.input("self_attention_mask", ("A", 1, "Q/M", "M", "S"))
    logit_positions = graph.input("logit_positions", ("P",), np.int64)
    alignment_queries = graph.input("alignment_queries", (1,), np.int64)
    cross_attention_mask = graph.input("cross_attention_mask", ("A", 1, 1, 1, "T"))
    group_shape = graph.op(
        "Concat", graph.constant([0, -1]), group_size, graph.constant([heads, head_size]), axis=0
    )
    attention = []
    x = graph.op("Add", layer.embed("decoder.token_embedding.weight", tokens),
                 layer.embed("decoder.positional_embedding", positions))  # fmt: skip
    for i in range(dims.n_text_layer):
        block = f"decoder.blocks.{i}"
        y = graph.layer_norm(x, weights, f"{block}.attn_ln")
        query, *new_kv = layer.fused_qkv(y, f"{block}.attn", head_size**-0.5)
        key_value = []
        for part, new in zip("kv", new_kv, strict=True):
            past = graph.input(f"past_{part}.{i}", ("A", heads, 1, "S", head_size))
            present = graph.op("ScatterND", past, slots, layer.split(new, heads), out=f"present_{part}.{i}")
            graph.output(present, present, ("A", heads, 1, "S", head_size))
            key_value.append(present)
        _, attended = layer.attend(query, group_shape, key_value, state, self_attention_mask)
        x = graph.op("Add", x, layer.linear(attended, f"{block}.attn.out"))

        layer_cross_kv = [graph.input(f"cross_{part}.{i}", ("A", heads, 1, "T", head_size)) for part in "kv"]
        y = graph.layer_norm(x, weights, f"{block}.cross_attn_ln")
        query = layer.linear(y, f"{block}.cross_attn.query", head_size**-0.5)
        attention_weights, attended = layer.attend(
            query, group_shape, layer_cross_kv, state, cross_attention_mask
        )
        if layer_heads := [head for alignment_layer, head in alignment_heads if alignment_layer == i]:
            layer_weights = graph.op(
                "Slice", attention_weights, graph.constant([0]), alignment_queries, graph.constant([2])
            )
            attention.append(graph.op("Gather", layer_weights, graph.constant(layer_heads), axis=1))
        x = graph.op("Add", x, layer.linear(attended, f"{block}.cross_attn.out"))
        x = layer.mlp(x, block)
    x = graph.op("Gather", graph.op("Reshape", x, graph.constant([-1, state])), logit_positions, axis=0)
    x = graph.layer_norm(x, weights, "decoder.ln")
    head_name = LM_HEAD if f"{LM_HEAD}.weight" in weights else "decoder.token_embedding"
    logits = layer.linear(x, head_name, rows=vocab_subset)
    graph.output(logits, "logits", ("P", dims.n_vocab if vocab_subset is None else len(vocab_subset)))
    by_layer = sorted(alignment_heads, key=lambda pair: pair[0])  # stable, as the loop above takes them
    order = [by_layer.index(pair) for pair in alignment_heads]
    layer_weights = graph.op("Gather", graph.op("Concat", *attention, axis=1), graph.constant(order), axis=1)
    graph.output(layer_weights, "alignment_weights", ("A", len(alignment_heads), "N", "M", "T"))
    return graph.build()


class _Layers:
    """The layers of Whisper in a graph, by the names of their weights."""

    def __init__(self, graph: GraphBuilder, weights: Arrays, scheme: QuantizationScheme) -> None:
        self.graph, self.weights, self._scheme = graph, weights, scheme

    def float32(self, name: str, scale: float = 1.0, rows: Ints | None = None) -> Floats:
        """Return a weight, or some rows of it, in float32 and scaled."""
        weight = self.weights[name] if rows is None else self.weights[name][rows]
        return np.asarray(weight, np.float32) * np.float32(scale)

    def linear(self, x: str, name: str, scale: float = 1.0, rows: Ints | None = None) -> str:
        y = self._scheme.linear(self.graph, x, self.float32(f"{name}.weight", scale, rows))
        return self.add_bias(y, name, scale, rows)

    def add_bias(self, x: str, name: str, scale: float = 1.0, rows: Ints | None = None) -> str:
        """Add the bias of a layer that has one."""
        if f"{name}.bias" not in self.weights:
            return x
        return self.graph.op("Add", x, self.graph.constant(self.float32(f"{name}.bias", scale, rows)))

    def fused_qkv(self, x: str, name: str, query_scale: float) -> list[str]:
        """Project to query, key and value of a self-attention in one multiplication."""
        parts = [(f"{name}.query", query_scale), (f"{name}.key", 1.0), (f"{name}.value", 1.0)]
        weight = [self.float32(f"{part}.weight", scale) for part, scale in parts]
        no_bias = np.zeros(len(weight[0]), np.float32)
        bias = [
            self.float32(f"{part}.bias", scale) if f"{part}.bias" in self.weights else no_bias
            for part, scale in parts
        ]
        y = self._scheme.linear(self.graph, x, np.concatenate(weight))
        y = self.graph.op("Add", y, self.graph.constant(np.concatenate(bias)))
        return self.graph.ops("Split", y, outputs=3, axis=-1, num_outputs=3)

    def attend(
        self, query: str, group_shape: str, key_value: Sequence[str], state: int, mask: str
    ) -> tuple[str, str]:
        """Return softmax weights over the keys, by groups of queries, and the attention's output, (A, Q, state)."""
        keys, values = key_value
        query = self.graph.op("Transpose", self.graph.op("Reshape", query, group_shape), perm=[0, 3, 1, 2, 4])
        scores = self.graph.op("FusedMatMul", query, keys, domain=MICROSOFT_DOMAIN, transB=1)
        attention_weights = self.graph.op("Softmax", self.graph.op("Add", scores, mask), axis=-1)
        attended = self.graph.op(
            "Transpose", self.graph.op("MatMul", attention_weights, values), perm=[0, 2, 3, 1, 4]
        )
        return attention_weights, self.graph.op("Reshape", attended, self.graph.constant([0, -1, state]))

    def embed(self, name: str, indices: str) -> str:
        """Look up rows of a table, which stays in the precision of the checkpoint to keep the file small."""
        rows = self.graph.op("Gather", self.graph.constant(self.weights[name]), indices, axis=0)
        return rows if self.weights[name].dtype == np.float32 else self.graph.op("Cast", rows, to=1)

    def encoder_qkv(self, x: str, block: str, heads: int) -> tuple[str, str, str]:
        """Project to query, key and value of the encoder's self-attention, by heads; keys are transposed."""
        y = self.graph.layer_norm(x, self.weights, f"{block}.attn_ln")
        state = self.weights[f"{block}.attn.query.weight"].shape[0]
        return (
            self.split(self.linear(y, f"{block}.attn.query", (state // heads) ** -0.5), heads),
            self.split(self.linear(y, f"{block}.attn.key"), heads, transposed=True),
            self.split(self.linear(y, f"{block}.attn.value"), heads),
        )

    def encoder_block(
        self, x: str, block: str, query: str, keys: str, values: str, mask: str | None = None
    ) -> str:
        """Return the output of a block, given that of the block before and what its self-attention reads, by heads."""
        scores = self.graph.op("MatMul", query, keys)
        if mask:
            scores = self.graph.op("Add", scores, mask)
        attended = self.graph.op("MatMul", self.graph.op("Softmax", scores, axis=-1), values)
        y = self.graph.op("Transpose", attended, perm=[0, 2, 1, 3])
        y = self.graph.op("Reshape", y, self.graph.constant([0, 0, -1]))
        x = self.graph.op("Add", x, self.linear(y, f"{block}.attn.out"))
        return self.mlp(x, block)

    def convolution(self, x: str, name: str, stride: int, padding: int = 1) -> str:
        weight, bias = (self.graph.constant(self.float32(f"{name}.{part}")) for part in ("weight", "bias"))
        y = self.graph.op("Conv", x, weight, bias, kernel_shape=[3], pads=[padding] * 2, strides=[stride])
        return self.graph.op("Gelu", y)

    def mlp(self, x: str, block: str) -> str:
        y = self.graph.layer_norm(x, self.weights, f"{block}.mlp_ln")
        y = self.graph.op("Gelu", self.linear(y, f"{block}.mlp.0"))
        y = self._scheme.after_gelu(self.graph, y, self.float32(f"{block}.mlp.2.weight"))
        return self.graph.op("Add", x, self.add_bias(y, f"{block}.mlp.2"))

    def split(self, x: str, heads: int, *, transposed: bool = False) -> str:
        """Reshape (A, n, state) to (A, heads, n, head size), or with the last two axes swapped."""
        y = self.graph.op("Reshape", x, self.graph.constant([0, 0, heads, -1]))
        return self.graph.op("Transpose", y, perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])
