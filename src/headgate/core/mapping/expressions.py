"""A safe subset of Python's expressions, compiled to text of Python that is ours.

The user's text is parsed to a tree, and the tree is written out again by `Compiler`: each kind of node that is allowed
has a method here, each other kind is refused. No piece of the user's text reaches the output but as the repr of a
literal; every name in the output is one of ours. What is written is an expression over these local names:

- `record` and `get` (its bound `dict.get`), `meta`, and `item` in a mapping that unnests;
- `budget`, the `Budget` of the record; `t1`, `t2`… and `moment` for intermediate values; `v1`… for comprehensions;

and over the helpers in `NAMESPACE`. There are two ways to write a node. Outside a comprehension each node runs at most
once per record, so the length of the expression bounds the cost of all that has a fixed price: common cases are written
in place (`t1 * 100` when `t1` is a plain number), and what costs more the more it is given, is called through the
budget. Inside a comprehension nodes run once per element, so every call is made through the budget, and nothing is
written in place.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headgate.core.mapping import functions, guesses, operators
from headgate.core.mapping.functions import FORMAT, FUNCTIONS
from headgate.core.mapping.mistakes import kind
from headgate.core.mapping.operators import ARITHMETIC, COMPARISONS, INTEGER_BITS, NUMBERS
from headgate.core.mapping.patterns import compile_pattern
from headgate.core.mapping.prices import STEP, Budget, TooExpensiveError
from headgate.errors import Problem

TEXT_LIMIT = 2_000  # Longer expressions want a function in Python.
NODE_LIMIT = 500
MAPPING_NODE_LIMIT = 20_000  # Of all expressions: to compile that many takes some tenths of a second.
DEPTH_LIMIT = 30  # Python's own parser gives up at two hundred brackets, and each level here writes a few.
LOOP_LIMIT = 3  # Loops inside loops.
_WIDE = 2**64  # Products of numbers below this are small enough to be made in place.

_VARIES = object()

_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("add", "+"),
    ast.Sub: ("subtract", "-"),
    ast.Mult: ("multiply", "*"),
    ast.Div: ("divide", ""),
    ast.FloorDiv: ("floor_divide", ""),
    ast.Mod: ("modulo", ""),
    ast.Pow: ("power", ""),
}

_BITS: dict[type[ast.operator], tuple[str, str]] = {
    ast.BitOr: ("|", "did you mean or?"),
    ast.BitAnd: ("&", "did you mean and?"),
    ast.BitXor: ("^", "a power is written **"),
    ast.LShift: ("<<", ""),
    ast.RShift: (">>", ""),
    ast.MatMult: ("@", ""),
}

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("less", "<"),
    ast.LtE: ("less_equal", "<="),
    ast.Gt: ("greater", ">"),
    ast.GtE: ("greater_equal", ">="),
    ast.Eq: ("equal", "=="),
    ast.NotEq: ("not_equal", "!="),
    ast.In: ("is_in", "in"),
    ast.NotIn: ("is_not_in", "not in"),
}

# Functions of one argument that are written in place when the argument is like this. {0} binds it, {1} uses it again.
_SHORT = "type({0}) is str and len({1}) < 1000"
_IN_PLACE = {
    "lower": (_SHORT, "{}.lower()"),
    "upper": (_SHORT, "{}.upper()"),
    "strip": (_SHORT, "{}.strip()"),
    "length": ("type({0}) is str", "len({})"),
    "round": ("type({0}) is float", "round({})"),
    "timestamp": (
        "type({0}) is str",
        "(moment if (moment := fromisoformat({})).tzinfo is not None else f_timestamp(moment))",
    ),
}

_MISSPELT = {"true": "True", "false": "False", "null": "None", "TRUE": "True", "FALSE": "False", "NULL": "None"}

_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("functions cannot be defined", ""),
    ast.NamedExpr: ("values cannot be named", ""),
    ast.GeneratorExp: ("a generator is not allowed", "put it in square brackets"),
    ast.SetComp: ("a set comprehension is not allowed", "use unique([… for … in …])"),
    ast.DictComp: ("a dict comprehension is not allowed", "write the keys out"),
    ast.Starred: ("unpacking with * is not allowed", ""),
    ast.Slice: ("slices are not allowed", "use substring, first or last"),
}

NAMESPACE: dict[str, Any] = {
    "__builtins__": {},
    "NUMBERS": NUMBERS,
    "PLAIN": frozenset({int, float, str, bool, bytes, type(None)}),  # What is compared with anything in a moment.
    "TooExpensiveError": TooExpensiveError,
    "dict": dict,
    "float": float,
    "fromisoformat": datetime.fromisoformat,
    "int": int,
    "len": len,
    "round": round,
    "str": str,
    "type": type,
    "o_chain": operators.chain,
    "o_item": operators.item,
    "o_negate": operators.negate,
    "f_format_parts": functions.format_parts,
    **{f"o_{name}": function for name, function in (ARITHMETIC | COMPARISONS).items()},
    **{f"f_{name}": function.call for name, function in FUNCTIONS.items()},
}


@dataclass(frozen=True, slots=True)
class Code:
    """An expression as it will be run, and its value when that is known already."""

    text: str
    value: Any = _VARIES

    @property
    def is_constant(self) -> bool:
        return self.value is not _VARIES

    @property
    def is_small_number(self) -> bool:
        return type(self.value) in NUMBERS and -_WIDE < self.value < _WIDE


NOTHING = Code("None", None)


class Compiler:
    """Compiles the expressions of one mapping and gathers what is wrong with them."""

    def __init__(self, problems: list[Problem], names: tuple[str, ...] = ("record", "meta")) -> None:
        self.namespace = dict(NAMESPACE)
        self._problems = problems
        self._names = {name: name for name in names}
        self._path = ""
        self._source = ""
        self._temporaries = 0
        self._loops = 0
        self.nodes = 0  # Of all expressions.

    def compile(self, source: object, path: str, broken: str = "") -> str:
        """Give the Python text for an expression; `None`, and a problem, for one that is refused. `broken` is the hint
        for one that cannot be read, where the document tells why."""
        self._path, self._source = path, ""
        if source is None or isinstance(source, bool | int | float):
            return self._literal(None, source).text
        if not isinstance(source, str):
            return self.refuse(None, f"an expression is text, not {kind(source)}").text
        tree = self.parse(source, path, broken)
        return NOTHING.text if tree is None else self._emit(tree).text

    def parse(self, source: str, path: str, broken: str = "") -> ast.expr | None:
        """Parse an expression and hold it to its limits, before anything walks it recursively."""
        self._path, self._source = path, source.strip()
        problem, hint = f"the expression has more than {TEXT_LIMIT} characters", "split it into several fields"
        if len(source) <= TEXT_LIMIT:
            try:
                tree = ast.parse(source.strip(), mode="eval").body
                problem = "the expression is too large or too deeply nested"
                nodes, depth = _measure(tree)
                if nodes <= NODE_LIMIT and depth <= DEPTH_LIMIT:
                    self.nodes += nodes
                    if self.nodes <= MAPPING_NODE_LIMIT:
                        return tree
                    problem, hint = f"the mapping has more than {MAPPING_NODE_LIMIT} nodes in all", ""
            except SyntaxError as error:
                at = guesses.place(self._source, error.lineno or 1, error.offset or 1)
                problem, hint = guesses.said(error) + at, broken or guesses.guess(source)
            except (ValueError, RecursionError, MemoryError):
                problem = "the expression cannot be read"
        self.refuse(None, problem, hint)
        return None

    def refuse(self, node: ast.AST | None, message: str, hint: str = "") -> Code:
        """Note a problem and go on with None, so that one reading finds all problems."""
        at = ""
        if isinstance(node, ast.expr):
            at = guesses.place(self._source, node.lineno, guesses.column_of(self._source, node))
        self._problems.append(Problem(self._path, message + at, hint))
        return NOTHING

    def guarded(self, function: str, text: str, *, fixed: bool) -> str:
        """Write a call that is made unless its argument is None, and paid for unless its price is fixed."""
        if not fixed:
            return self._call("guard_deep", function, [text])
        bound, name = self._bind(Code(text))
        return f"({function}({name}) if {bound} is not None else None)"

    # Nodes.

    def _emit(self, node: ast.expr) -> Code:
        method: Callable[[Any], Code] | None = getattr(self, f"_emit_{type(node).__name__}", None)
        if method is not None:
            return method(node)
        message, hint = _REFUSED.get(type(node), (f"{type(node).__name__} is not allowed in an expression", ""))
        return self.refuse(node, message, hint)

    def _emit_Constant(self, node: ast.Constant) -> Code:
        return self._literal(node, node.value)

    def _literal(self, node: ast.AST | None, value: Any) -> Code:
        """Write a value that is known; what has no short and exact repr is refused."""
        if isinstance(value, bytes | complex) or value is ...:
            return self.refuse(node, f"a literal of type {type(value).__name__} is not allowed")
        if isinstance(value, float) and not math.isfinite(value):
            return self.refuse(node, "the number is too large for a float")
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            return self.refuse(node, f"the number has more than {INTEGER_BITS} bits")
        if isinstance(value, str | list | dict) and len(value) > TEXT_LIMIT:
            return self.refuse(node, f"the constant has more than {TEXT_LIMIT} elements")
        bracketed = isinstance(value, int | float) and value < 0
        return Code(f"({value!r})" if bracketed else repr(value), value)

    def _emit_Name(self, node: ast.Name) -> Code:
        if node.id in self._names:
            return Code(self._names[node.id])
        if node.id in _MISSPELT:
            return self.refuse(node, f"{node.id} is not a value here", f"write {_MISSPELT[node.id]}")
        return Code(f"get({node.id!r})") if self._is_plain(node, node.id) else NOTHING

    def _emit_Attribute(self, node: ast.Attribute) -> Code:
        return self._step(node.value, node.attr) if self._is_plain(node, node.attr) else NOTHING

    def _emit_Subscript(self, node: ast.Subscript) -> Code:
        key = self._emit(node.slice)
        if isinstance(key.value, str):
            return self._step(node.value, key.value)
        return Code(f"o_item({self._emit(node.value).text}, {key.text})")

    def _step(self, inner: ast.expr, key: str) -> Code:
        """Walk into a dict by a key that is known: in place, as this is what most expressions do."""
        value = self._emit(inner)
        if value.text == "record":
            return Code(f"get({key!r})")
        if self._loops or value.is_constant:
            return Code(f"o_item({value.text}, {key!r})")
        bound, name = self._bind(value)
        return Code(f"({name}.get({key!r}) if type({bound}) is dict else o_item({name}, {key!r}))")

    def _is_plain(self, node: ast.AST, name: str) -> bool:
        if name.startswith("__"):
            self.refuse(node, f"the name {name} is not allowed", f'write record["{name}"]')
        return not name.startswith("__")

    def _emit_List(self, node: ast.List | ast.Tuple) -> Code:
        elements = [self._emit(element) for element in node.elts]
        text = f"[{', '.join(element.text for element in elements)}]"
        known = all(element.is_constant for element in elements)
        return Code(text, [element.value for element in elements] if known else _VARIES)

    _emit_Tuple = _emit_List

    def _emit_Dict(self, node: ast.Dict) -> Code:
        pairs = []
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                return self.refuse(node, "the keys of a dict must be literal text")
            pairs.append(f"{key.value!r}: {self._emit(value).text}")
        return Code(f"{{{', '.join(pairs)}}}")

    def _emit_Set(self, node: ast.Set) -> Code:
        """Not allowed. Two pairs of braces are another language's way to put a value in."""
        inner, hint = node.elts[0], "use a list"
        if isinstance(inner, ast.Set) and len(inner.elts) == 1:
            hint = f"did you mean `{ast.unparse(inner.elts[0])}`?"
        return self.refuse(node, "a set is not allowed", hint)

    def _emit_JoinedStr(self, node: ast.JoinedStr) -> Code:
        parts = [self._part(part) for part in node.values]
        return Code(self._call("call_deep", "f_format_parts", parts))

    def _part(self, node: ast.expr) -> str:
        if not isinstance(node, ast.FormattedValue):
            return self._emit(node).text
        layout = _layout(node.format_spec)
        if node.conversion != -1:
            self.refuse(node.value, "conversions such as !r are not allowed")
        elif layout is None or not FORMAT.fullmatch(layout):
            self.refuse(node.value, "the format is not allowed", "widths below 1000, literal, as in {total:8.2f}")
        return f"({self._emit(node.value).text}, {layout!r})"

    # Operators.

    def _emit_BinOp(self, node: ast.BinOp) -> Code:
        left, right = self._emit(node.left), self._emit(node.right)
        if type(node.op) not in _ARITHMETIC:
            sign, hint = _BITS.get(type(node.op), (type(node.op).__name__, ""))
            return self.refuse(node, f"the operator {sign} is not allowed", hint)
        name, sign = _ARITHMETIC[type(node.op)]
        if left.is_constant and right.is_constant:
            return self._fold(node, ARITHMETIC[name], left.value, right.value)
        if sign and not self._loops:
            return self._arithmetic(name, sign, left, right)
        if name == "power":
            return Code(self._call("power", "o_power", [left.text, right.text]))
        return Code(self._call("call", f"o_{name}", [left.text, right.text]))

    def _fold(self, node: ast.expr, function: Callable[..., Any], *values: Any) -> Code:
        """Work out what is constant now, so that bombs and mistakes are found here and not in each record."""
        try:
            return self._literal(node, Budget().call(function, *values))
        except Exception as error:  # Whatever the error is, each record would meet it.
            return self.refuse(node, str(error))

    def _arithmetic(self, name: str, sign: str, left: Code, right: Code) -> Code:
        """Plain numbers in place. Both operands are bound before either is tested, hence `&`."""
        bounds = [self._bind(left), self._bind(right)]
        tests = [
            _is_number(bound, operand, is_small=sign == "*")
            for code, (bound, operand) in zip((left, right), bounds, strict=True)
            if not code.is_small_number
        ]
        first, second = (operand for _, operand in bounds)
        slow = f"budget.call(o_{name}, {first}, {second})"
        return Code(f"({first} {sign} {second} if {' & '.join(tests)} else {slow})")

    def _emit_UnaryOp(self, node: ast.UnaryOp) -> Code:
        operand = self._emit(node.operand)
        if isinstance(node.op, ast.Not):
            return Code(f"(not {operand.text})")
        if isinstance(node.op, ast.Invert):
            return self.refuse(node, "the operator ~ is not allowed", "did you mean not?")
        if isinstance(node.op, ast.UAdd):
            return operand
        if operand.is_constant:
            return self._fold(node, operators.negate, operand.value)
        return Code(f"o_negate({operand.text})")

    def _emit_BoolOp(self, node: ast.BoolOp) -> Code:
        word = " and " if isinstance(node.op, ast.And) else " or "
        return Code(f"({word.join(self._emit(value).text for value in node.values)})")

    def _emit_IfExp(self, node: ast.IfExp) -> Code:
        test, body, other = self._emit(node.test), self._emit(node.body), self._emit(node.orelse)
        return Code(f"({body.text} if {test.text} else {other.text})")

    def _emit_Compare(self, node: ast.Compare) -> Code:
        values = [self._emit(value) for value in (node.left, *node.comparators)]
        if any(isinstance(operation, ast.Is | ast.IsNot) for operation in node.ops):
            return self._is_none(node, values)
        names = [_COMPARISONS[type(operation)] for operation in node.ops]
        if len(names) > 1:
            chained = repr(tuple(name for name, _ in names))
            return Code(self._call("call_deep", "o_chain", [chained, *(value.text for value in values)]))
        return self._compare(*names[0], *values)

    def _is_none(self, node: ast.Compare, values: list[Code]) -> Code:
        if len(values) != 2 or values[1] != NOTHING:
            return self.refuse(node, "`is` compares with None only", "use ==")
        return Code(f"({values[0].text} {'is' if isinstance(node.ops[0], ast.Is) else 'is not'} None)")

    def _compare(self, name: str, sign: str, left: Code, right: Code) -> Code:
        slow = "call_deep" if self._loops else "call"
        if self._loops or (name in ("is_in", "is_not_in") and not isinstance(right.value, list)):
            return Code(self._call(slow, f"o_{name}", [left.text, right.text]))
        if name in ("is_in", "is_not_in") or (name in ("equal", "not_equal") and _is_plain(left, right)):
            return Code(f"({left.text} {sign} {right.text})")
        if name in ("equal", "not_equal"):
            (bound, first), (other, second) = self._bind(left), self._bind(right)
            rest = self._call("call_deep", f"o_{name}", [first, second])
            return Code(f"({first} {sign} {second} if (type({bound}) in PLAIN) | (type({other}) in PLAIN) else {rest})")
        if left.is_constant or not (right.is_small_number or isinstance(right.value, str)):
            return Code(self._call(slow, f"o_{name}", [left.text, right.text]))
        bound, temporary = self._bind(left)
        test = "is str" if isinstance(right.value, str) else "in NUMBERS"
        rest = self._call(slow, f"o_{name}", [temporary, right.text])
        return Code(f"({temporary} {sign} {right.text} if type({bound}) {test} else {rest})")

    # Calls and comprehensions.

    def _emit_Call(self, node: ast.Call) -> Code:
        if not isinstance(node.func, ast.Name):
            hint = guesses.guess_method(node.func, node.args) if isinstance(node.func, ast.Attribute) else ""
            return self.refuse(node, "only functions of the fixed list can be called", hint)
        name = node.func.id
        if name not in FUNCTIONS:
            return self.refuse(node, f"the function {name} does not exist", guesses.guess_function(name))
        function, given = FUNCTIONS[name], len(node.args)
        if node.keywords or given < function.least or (function.most is not None and given > function.most):
            return self.refuse(node, f"{name} does not take these arguments", f"as in {function.signature}")
        if name == "match":
            return self._match(node)
        arguments = [self._emit(argument).text for argument in node.args]
        return Code(self._function(name, arguments))

    def _function(self, name: str, arguments: list[str]) -> str:
        function = FUNCTIONS[name]
        if name == "coalesce" and not self._loops and len(arguments) <= 5:
            return self._coalesce(arguments)
        if name in _IN_PLACE and len(arguments) == 1 and not self._loops:
            return self._in_place(name, function, arguments[0])
        if self._loops or not function.fixed:
            way = ("call" if function.takes_none else "guard") + ("_deep" if function.deep else "")
            return self._call(way, f"f_{name}", arguments)
        if function.takes_none:
            return f"f_{name}({', '.join(arguments)})"
        bound, first = self._bind(Code(arguments[0]))
        call = f"f_{name}({', '.join([first, *arguments[1:]])})"
        return f"({call} if {bound} is not None else None)"

    def _in_place(self, name: str, function: functions.Function, argument: str) -> str:
        bound, first = self._bind(Code(argument))
        test, template = _IN_PLACE[name]
        rest = f"(f_{name}({first}) if {first} is not None else None)"
        if not function.fixed:
            rest = self._call("guard_deep" if function.deep else "guard", f"f_{name}", [first])
        return f"({template.format(first)} if {test.format(bound, first)} else {rest})"

    def _coalesce(self, arguments: list[str]) -> str:
        if len(arguments) == 1:
            return arguments[0]
        bound, name = self._bind(Code(arguments[0]))
        return f"({name} if {bound} is not None else {self._coalesce(arguments[1:])})"

    def _match(self, node: ast.Call) -> Code:
        """The pattern is weighed once, here, so it must be known."""
        pattern = node.args[1]
        if not (isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)):
            return self.refuse(pattern, "the pattern of match must be literal text")
        try:
            compiled = compile_pattern(pattern.value)
        except ValueError as error:
            return self.refuse(pattern, str(error), "use simple repeats, and anchor with ^")
        name = f"p{len(self.namespace)}"
        self.namespace[name] = compiled
        return Code(f"budget.find({self._emit(node.args[0]).text}, {name})")

    def _emit_ListComp(self, node: ast.ListComp) -> Code:
        if self._loops + len(node.generators) > LOOP_LIMIT:
            return self.refuse(node, f"more than {LOOP_LIMIT} loops inside each other")
        outer, step = dict(self._names), STEP * _measure(node)[0]
        self._loops += len(node.generators)
        loops = [self._loop(generator, step) for generator in node.generators]
        text = f"[{self._emit(node.elt).text} {' '.join(loops)}]"
        self._loops -= len(node.generators)
        self._names = outer
        return Code(text)

    def _loop(self, generator: ast.comprehension, step: int) -> str:
        values = self._emit(generator.iter).text
        if not isinstance(generator.target, ast.Name) or generator.is_async:
            self.refuse(generator.target, "a comprehension walks with one plain name")
        elif self._is_plain(generator.target, generator.target.id):
            self._names[generator.target.id] = variable = self._temporary("v")
            tests = [f" if {self._emit(test).text}" for test in generator.ifs]
            return f"for {variable} in budget.each({values}, {step}){''.join(tests)}"
        return ""

    # Writing.

    def _call(self, way: str, function: str, arguments: list[str]) -> str:
        return f"budget.{way}({', '.join([function, *arguments])})"

    def _bind(self, code: Code) -> tuple[str, str]:
        """Give the text that evaluates and keeps a value, and the text that uses it again."""
        if code.is_constant or code.text.isidentifier():
            return code.text, code.text
        name = self._temporary("t")
        return f"({name} := {code.text})", name

    def _temporary(self, prefix: str) -> str:
        self._temporaries += 1
        return f"{prefix}{self._temporaries}"


def _is_number(bound: str, name: str, *, is_small: bool) -> str:
    """Write the test for a plain number. Floats come first: comparing them with a large int is slow."""
    if is_small:
        return f"(type({bound}) is float or type({name}) is int and -{_WIDE} < {name} < {_WIDE})"
    return f"(type({bound}) in NUMBERS)"


def _is_plain(left: Code, right: Code) -> bool:
    return any(type(code.value) in (int, float, str, bool, type(None)) for code in (left, right))


def _layout(node: ast.expr | None) -> str | None:
    """Give the literal format of a part of an f-string, or None when it is computed."""
    if node is None:
        return ""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return "".join(texts) if len(texts) == len(parts) else None


def _measure(tree: ast.AST) -> tuple[int, int]:
    """Count nodes and depth without recursion: the tree may be deeper than the stack."""
    nodes, depth, level = 0, 0, [tree]
    while level and nodes <= NODE_LIMIT:
        nodes, depth = nodes + len(level), depth + 1
        level = [child for node in level for child in _children(node)]
    return nodes, depth


def _children(node: ast.AST) -> Iterator[ast.AST]:
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr | ast.comprehension))
