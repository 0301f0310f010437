"""What the ONNX engine computes with: runtimes and precisions of each processor, quantised layers, saturation."""

import sys

import numpy as np
import pytest

from harken.backends.onnx import OnnxBackend, graph_loader, runtimes
from harken.backends.onnx.builder import GraphBuilder
from harken.backends.onnx.graph_loader import DEPTH, LARGEST_ACTIVATION, probe_graph, probe_weights, weight_bits
from harken.backends.onnx.linear import INTEGER_SCHEMES, UNITS_PER_OUTLIER, quantise_rows
from harken.backends.onnx.runtimes import (
    MODEL_FILE,
    OnnxRuntimeGraph,
    bfloat16_is_faster,
    import_onnxruntime,
    make_runtime_plan,
    openvino_capabilities,
    write_graph,
)
from harken.errors import BackendUnavailable, OptionError, OutOfMemory
from tiny_models import DIMS, StoredWeights, make_mel, make_weights

# --- plans -------------------------------------------------------------------------------------------------

WITHOUT_OPENVINO = frozenset()
WITHOUT_BF16 = frozenset({"FP32", "INT8"})
WITH_BF16 = WITHOUT_BF16 | {"BF16"}


@pytest.fixture
def processor(monkeypatch):
    """A function that sets what OpenVINO reports of the processor, and whether its bfloat16 is fast."""

    def report(capabilities, *, fast=True):
        monkeypatch.setattr(runtimes, "openvino_capabilities", lambda: capabilities)
        monkeypatch.setattr(runtimes, "bfloat16_is_faster", lambda: fast)

    return report


@pytest.mark.parametrize(
    ("capabilities", "fast", "precision", "encoder", "decoder"),
    [
        (WITH_BF16, True, "auto", "openvino bf16", "onnxruntime int8"),
        (WITH_BF16, True, "int8", "openvino bf16", "onnxruntime int8"),
        (WITH_BF16, True, "int4", "openvino bf16", "onnxruntime int4"),
        (WITH_BF16, True, "bf16", "openvino bf16", "onnxruntime fp32"),
        (WITH_BF16, True, "fp32", "openvino f32", "onnxruntime fp32"),
        # Slow bfloat16 is used only where it is asked for.
        (WITH_BF16, False, "auto", "openvino f32", "onnxruntime int8"),
        (WITH_BF16, False, "bf16", "openvino bf16", "onnxruntime fp32"),
        (WITHOUT_BF16, True, "auto", "openvino f32", "onnxruntime int8"),
        (WITHOUT_OPENVINO, True, "auto", "onnxruntime fp32", "onnxruntime int8"),
        (WITHOUT_OPENVINO, True, "fp32", "onnxruntime fp32", "onnxruntime fp32"),
    ],
)
def test_plan_follows_precision_and_processor(processor, capabilities, fast, precision, encoder, decoder):
    processor(capabilities, fast=fast)
    plan = make_runtime_plan(precision)
    assert plan.precision == ("int8" if precision == "auto" else precision)
    assert str(plan) == f"encoder {encoder}, decoder {decoder}"


@pytest.mark.parametrize("capabilities", [WITHOUT_BF16, WITHOUT_OPENVINO])
def test_precision_that_the_processor_or_the_engine_lacks_is_refused(processor, capabilities):
    processor(capabilities)
    with pytest.raises(OptionError, match=r"precision='bf16'.*fp32 or int8"):
        make_runtime_plan("bf16")
    with pytest.raises(OptionError, match=r"precision='fp16'.*auto, fp32, bf16, int8"):
        make_runtime_plan("fp16")


@pytest.mark.parametrize(
    ("description", "faster"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512_bf16 avx512_fp16", False),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512_bf16 amx_bf16 amx_tile amx_int8", True),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu not_amx_bf16 amx_tile", False),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx512_bf16", True),
        ("Features\t: fp asimd bf16 sme", True),
        (None, True),
    ],
)
def test_bfloat16_is_slower_on_intel_without_matrix_units(tmp_path, description, faster):
    cpuinfo = tmp_path / "cpuinfo"
    if description:
        cpuinfo.write_text(description)
    assert bfloat16_is_faster(cpuinfo) == faster


def test_missing_runtime_is_no_capability_or_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert openvino_capabilities() == frozenset()
    with pytest.raises(BackendUnavailable, match=r"pip install .\.\[onnx\]"):
        import_onnxruntime()


# --- loading -----------------------------------------------------------------------------------------------


class WithoutBfloat16(OnnxRuntimeGraph):
    """OpenVINO where it reports bfloat16 arithmetic, but cannot compile for it."""

    error = RuntimeError("Supported primitive descriptors list is empty")

    def __init__(self, path, threads, precision):
        if precision == "bf16":
            raise self.error
        super().__init__(path, threads)


@pytest.fixture
def openvino(processor, monkeypatch):
    processor(WITH_BF16)
    monkeypatch.setattr(graph_loader, "OpenVinoGraph", WithoutBfloat16)
    return WithoutBfloat16


def open_onnx(cache, precision):
    return OnnxBackend(DIMS, StoredWeights(make_weights(), "tiny"), precision=precision, threads=1, cache=cache)


@pytest.mark.parametrize("precision", ["auto", "int4"])
def test_encoder_computes_in_float32_where_bfloat16_fails(tmp_path, openvino, precision):
    backend = open_onnx(tmp_path, precision)
    assert backend.plan.encoder == ("openvino", "f32")
    assert "encoder openvino f32" in backend.capabilities.detail
    backend.encode_chunk([backend.open_encoder(8)], make_mel(1)[:, :, :12], 8)


@pytest.mark.parametrize(
    ("precision", "error"),
    [
        ("bf16", WithoutBfloat16.error),
        ("auto", RuntimeError("cannot be opened")),
        ("auto", OutOfMemory("std::bad_alloc")),
    ],
    ids=str,
)
def test_an_error_for_which_the_precision_must_not_change_is_raised(
    tmp_path, openvino, monkeypatch, precision, error
):
    monkeypatch.setattr(openvino, "error", error)
    with pytest.raises(type(error), match=str(error).rpartition(":")[2]):
        open_onnx(tmp_path, precision)


# --- quantised layers: one scale a row, errors of at most half a step, exact integer sums -------------------


@pytest.fixture(scope="module")
def bits(tmp_path_factory):
    """Bits of the weights that this machine adds without saturation."""
    folder = tmp_path_factory.mktemp("probe")
    write_graph(probe_graph(), folder)
    return weight_bits(OnnxRuntimeGraph(folder / MODEL_FILE, threads=1))


COLUMNS, OUTPUTS = 96, 40
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((OUTPUTS, COLUMNS), np.float32)


def multiply(scheme, x, weight, tmp_path):
    """Multiply by a general layer and by one behind a GELU."""
    graph = GraphBuilder("linear")
    x_name = graph.input("x", ("rows", weight.shape[1]))
    for name in ("linear", "after_gelu"):
        graph.output(getattr(scheme, name)(graph, x_name, weight), name, ("rows", len(weight)))
    write_graph(graph.build(), tmp_path)
    run = OnnxRuntimeGraph(tmp_path / MODEL_FILE, threads=1)
    outputs = {name: np.empty((len(x), len(weight)), np.float32) for name in ("linear", "after_gelu")}
    run({"x": x}, outputs)
    return outputs["linear"], outputs["after_gelu"]


@pytest.mark.parametrize(("scheme", "tolerance"), [("int8", 0.012), ("int7", 0.02), ("int4", 0.12)])
def test_quantised_products_are_close_to_float32(tmp_path, bits, scheme, tolerance):
    if scheme == "int8" and bits < 8:  # which is not used there
        scheme, tolerance = "int7", 0.02
    x = RNG.standard_normal((5, COLUMNS), np.float32)
    gelu = np.maximum(x, np.float32(-0.1))
    linear, _ = multiply(INTEGER_SCHEMES[scheme], x, WEIGHT, tmp_path)
    _, after_gelu = multiply(INTEGER_SCHEMES[scheme], gelu, WEIGHT, tmp_path)
    for actual, expected in ((linear, x @ WEIGHT.T), (after_gelu, gelu @ WEIGHT.T)):
        assert np.abs(actual - expected).std() < tolerance * expected.std()


def test_input_row_of_zeros_gives_zeros(tmp_path, bits):
    x = RNG.standard_normal((3, COLUMNS), np.float32)
    x[1] = 0
    for product in multiply(INTEGER_SCHEMES[f"int{bits}"], x, WEIGHT, tmp_path):
        assert not product[1].any()
        assert product[0].all()
        assert np.isfinite(product).all()


def test_outlier_channels_do_not_coarsen_the_others(tmp_path, bits):
    x = np.abs(RNG.standard_normal((4, COLUMNS), np.float32))
    x[:, : COLUMNS // UNITS_PER_OUTLIER] *= 1000
    weight = WEIGHT.copy()
    weight[:, : COLUMNS // UNITS_PER_OUTLIER] = 0
    linear, after_gelu = multiply(INTEGER_SCHEMES[f"int{bits}"], x, weight, tmp_path)
    expected = x @ weight.T
    assert np.abs(after_gelu - expected).max() < 0.05 * expected.std()
    assert np.abs(linear - expected).max() > expected.std()


# --- integers that saturate --------------------------------------------------------------------------------

LIMIT = 2**15 - 1


def sum_exactly(x, weights):
    return x.astype(np.int64) @ weights.astype(np.int64)


def sum_pairs_with_saturation(x, weights):
    """Pairs of products added in 16 bits with saturation, as `pmaddubsw` does."""
    products = x.astype(np.int64)[:, :, None] * weights.astype(np.int64)
    return np.clip(products[:, ::2] + products[:, 1::2], -LIMIT - 1, LIMIT).sum(axis=1)


def saturate_with_several_rows(x, weights):
    return (sum_exactly if len(x) == 1 else sum_pairs_with_saturation)(x, weights)


class FakeGraph:
    """The probe graph on a machine with the given way to sum."""

    def __init__(self, sum_products):
        self._sum_products = sum_products

    def __call__(self, inputs, outputs):
        outputs["sums"][:] = self._sum_products(inputs["x"], probe_weights())


@pytest.mark.parametrize(
    ("sum_products", "bits"),
    [(sum_exactly, 8), (sum_pairs_with_saturation, 7), (saturate_with_several_rows, 7)],
)
def test_saturating_machine_gets_weights_of_seven_bits(sum_products, bits):
    assert weight_bits(FakeGraph(sum_products)) == bits


def test_seven_bits_do_not_saturate():
    weights, _ = quantise_rows(np.random.default_rng(0).standard_normal((40, DEPTH), np.float32), 7)
    largest = np.full((3, DEPTH), LARGEST_ACTIVATION)
    np.testing.assert_array_equal(
        sum_pairs_with_saturation(largest, weights.T), sum_exactly(largest, weights.T)
    )


@pytest.mark.parametrize("n_bits", [7, 8])
def test_graphs_of_seven_and_eight_bits_are_stored_separately(
    tmp_path, monkeypatch, reference_backend, bits, n_bits
):
    monkeypatch.setattr(graph_loader, "weight_bits", lambda graph: n_bits)
    quantised = open_onnx(tmp_path, "int8")
    (graph,) = tmp_path.glob("tiny-decoder-*")
    assert f"-int{n_bits}-" in graph.name
    logits = quantised.open_session(quantised.encode(make_mel(1)), [0], 8).extend([[1, 2, 3]])
    plain = reference_backend.encode(make_mel(1))
    expected = reference_backend.open_session(plain, [0], 8).extend([[1, 2, 3]])
    error = np.abs(logits.values - expected.values).max() / expected.values.std()
    assert 0 < error < (0.5 if n_bits <= bits else 2)
