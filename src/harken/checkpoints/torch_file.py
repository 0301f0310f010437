"""Reader of ``torch.save`` files, and of OpenAI's ``.pt`` files, that needs no torch and runs no code from the file.

Such a file is a zip archive of stored members: ``NAME/data.pkl``, a pickle in which every tensor names a
storage, and ``NAME/data/KEY``, the bytes of each storage (torch/serialization.py `_save`).
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, Vocabulary, assemble
from harken.checkpoints.model_files import DTYPES, Array, LazyTensor, read_member, watch, zip_members
from harken.checkpoints.weight_shapes import declared_by
from harken.errors import CheckpointError


class Global(NamedTuple):
    """A name that the pickle imports, as "module name"."""

    name: str


class Storage(NamedTuple):
    """A persistent id: ("storage", type, key, location, number of values)."""

    tag: Any
    type: Any
    key: Any
    location: Any
    items: Any


class PickledTensor(NamedTuple):
    """A tensor: the unchecked arguments of torch/_utils.py `_rebuild_tensor_v2`."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any
    requires_grad: Any = False
    hooks: Any = None
    metadata: Any = None


def parse_pickle(data: bytes) -> Any:
    """Build the object of a pickle: dict, list, tuple, str, int, float, bool, None and `PickledTensor`.

    Keys of dictionaries must be text or integers: hashing deeply nested tuples that share their elements would take
    exponential time. A ValueError says that it is damaged, or needs something that a state dict does not.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        if len(machine.stack) != 1:
            raise IndexError(len(machine.stack))
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its instructions do not fit together") from error
    return machine.stack[0]


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MAX_GLOBAL = 256
_TUPLE_SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack machine of which a pickle is a program; Python's own lets it import and call anything.

    This one has only the instructions that a state dict needs, and the two functions that may be called return plain
    data.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        """Run one instruction, as documented in the standard library's `pickletools`."""
        stack, push, pop = self.stack, self.stack.append, self.stack.pop
        match opcode:
            case "BINGET" | "LONG_BINGET":
                push(self.memo[argument])
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                push(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                push(_CONSTANTS[opcode])
            case "MARK":
                self.marks.append(len(stack))
            case "TUPLE":
                push(tuple(self.pop_from(self.marks.pop())))
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple(self.pop_from(len(stack) - _TUPLE_SIZES[opcode])))
            case "EMPTY_LIST":
                push([])
            case "APPEND":
                stack[-2].append(pop())
            case "APPENDS":
                items = self.pop_from(self.marks.pop())
                stack[-1].extend(items)
            case "EMPTY_DICT":
                push({})
            case "SETITEM":
                items = self.pop_from(len(stack) - 2)
                stack[-1].update(_pairs([items]))
            case "SETITEMS":
                items = self.pop_from(self.marks.pop())
                stack[-1].update(_pairs([items[i : i + 2] for i in range(0, len(items), 2)]))
            case "BINPERSID":
                push(Storage(*pop()))
            case "GLOBAL":
                push(Global(argument))
            case "STACK_GLOBAL":
                name, module = pop(), pop()
                if not all(isinstance(part, str) and len(part) <= _MAX_GLOBAL for part in (module, name)):
                    raise TypeError("what is imported is not a name, or is longer than any of a state dict")
                push(Global(f"{module} {name}"))
            case "REDUCE":
                arguments = pop()
                push(_construct(pop(), arguments))
            case "BUILD":
                pop()  # attributes of a state dict, which are not needed
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise ValueError(f"it holds the instruction {opcode}, which a state dict does not need")

    def pop_from(self, start: int) -> list[Any]:
        """Remove and return the stack from a position on."""
        if not 0 <= start <= len(self.stack):
            raise IndexError(start)
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _pairs(items: Any) -> list[tuple[str | int, Any]]:
    """Return key and value of each item after a check that the keys are cheap to hash."""
    pairs = [tuple(item) for item in items]
    if not all(len(pair) == 2 and isinstance(pair[0], str | int) for pair in pairs):
        raise TypeError("an item is no pair, or its key is neither text nor an integer")
    return pairs


def _construct(function: Any, arguments: Any) -> Any:
    if not isinstance(function, Global):
        raise TypeError("what is called is not a name")
    match function.name:
        case "collections OrderedDict":
            return dict(_pairs(*arguments or ((),)))
        case "torch._utils _rebuild_tensor_v2":
            return PickledTensor(*arguments)
        case "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state":
            return arguments[0]  # a tensor
    raise ValueError(f"it calls {function.name[:80]!r}, which a state dict does not need")


_DTYPES = {
    Global(f"torch {kind}Storage"): DTYPES[name]
    for kind, name in (
        ("Float", "float32"),
        ("Half", "float16"),
        ("BFloat16", "bfloat16"),
        ("Double", "float64"),
    )
}
_MAX_PICKLE_BYTES = 1 << 24  # large-v3 has 150 kB
_WRAPPER = "module."
"""Before the names of a model that was trained in several processes."""


def read_openai(path: Path) -> Checkpoint:
    """Open a ``.pt`` file, a dict of dimensions and weights (whisper/__init__.py `load_model`)."""
    watched = watch(path)
    file = TorchFile(path)
    match file.content:
        case {"dims": dict(dims), "model_state_dict": state}:
            tensors = file.tensors(state)
            if all(name.startswith(_WRAPPER) for name in tensors):
                tensors = {name.removeprefix(_WRAPPER): tensor for name, tensor in tensors.items()}
            declared = declared_by(path, dims)
            return assemble(path, "openai", tensors, declared, Vocabulary(), files=[watched])
    raise CheckpointError(f"{path}: holds no dict with dims and model_state_dict, as OpenAI's checkpoints do")


class TorchFile:
    """An opened ``torch.save`` file, whose content is the saved object with a `PickledTensor` in place of each tensor.

    A `CheckpointError` says that the file is not such an archive, is damaged, or contains more than data.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors: dict[object, LazyTensor] = {}  # tied weights are one
        self._members = zip_members(path)
        pickles = [name for name in self._members if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise CheckpointError(f"{path}: a zip archive with {len(pickles)} data.pkl, torch.save writes one")
        self._folder = pickles[0].removesuffix("data.pkl")
        if self._members[pickles[0]].file_size > _MAX_PICKLE_BYTES:
            raise CheckpointError(f"{path}: data.pkl has more than {_MAX_PICKLE_BYTES} bytes")
        data = read_member(path, self._members[pickles[0]]).tobytes()
        try:
            self.content: Any = parse_pickle(data)
        except ValueError as error:
            raise CheckpointError(f"{path}: data.pkl is refused: {error}") from error

    def tensors(self, state: object) -> dict[str, LazyTensor]:
        """Return the tensors of a state dict, which is the content or a part of it; they are not read yet."""
        if not isinstance(state, Mapping):
            raise CheckpointError(f"{self.path}: holds no dict of weights")
        return {str(name): self._tensor(str(name)[:80], pickled) for name, pickled in state.items()}

    def _tensor(self, name: str, pickled: object) -> LazyTensor:
        if not isinstance(pickled, PickledTensor) or not isinstance(pickled.storage, Storage):
            raise CheckpointError(f"{self.path}: {name!r} is not a tensor")
        storage, offset, shape, strides = pickled[:4]
        dtype = _DTYPES.get(storage.type) if isinstance(storage.type, Global) else None
        if dtype is None:
            allowed = ", ".join(allowed.name for allowed in _DTYPES)
            raise CheckpointError(f"{self.path}: {name!r} has another type than {allowed}")
        key, items = storage.key, storage.items
        member = self._members.get(f"{self._folder}data/{key}") if isinstance(key, str) else None
        if member is None or not _is_size(items) or member.file_size != items * dtype.block_bytes:
            raise CheckpointError(f"{self.path}: the storage of {name!r} is missing or of another size")
        if not _fits(offset, shape, strides, items):
            raise CheckpointError(f"{self.path}: {name!r} reaches outside its storage")

        def read() -> Array:
            blocks = read_member(self.path, member).reshape(-1, dtype.block_bytes)
            values = dtype.decode(blocks).ravel()[offset:]
            steps = [stride * values.itemsize for stride in strides]
            return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values, shape, steps))

        return self._tensors.setdefault(
            (dtype.name, key, offset, shape, strides), LazyTensor(shape, dtype.name, read)
        )


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _fits(offset: Any, shape: Any, strides: Any, items: int) -> bool:
    """Return True if a strided view is inside its storage and has no more values than that."""
    if not isinstance(shape, tuple) or not isinstance(strides, tuple) or len(shape) != len(strides):
        return False
    if not all(map(_is_size, (offset, *shape, *strides))) or 0 in shape:
        return False
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return last < items and math.prod(shape) <= items
