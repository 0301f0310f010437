"""Safe parser of the pickle in a ``torch.save`` file.

A pickle is a program for a stack machine, and Python's own machine lets it import and call anything. This one has only
the instructions that a state dict needs, and the two functions that may be called return plain data.
"""

from __future__ import annotations

import pickletools
from typing import Any, NamedTuple


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
    exponential time.

    Raises
    ------
    ValueError
        If the pickle is damaged, or needs something that a state dict does not.
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
_TUPLE_SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
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
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
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
    raise ValueError(f"it calls {function.name[:80]!r}, which a state dict does not need")
