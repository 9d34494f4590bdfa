"""Evaluation of expressions by the static interpreter."""

import ast
import operator
from collections.abc import Iterator
from typing import Any

from .values import MISSING, Bound, Class, Function, Host, Instance, LiteralType, Member, Module, Symbol, Unknown, Value

BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
COMPARE = {
    ast.Eq: ("__eq__", operator.eq),
    ast.NotEq: ("__ne__", operator.ne),
    ast.Lt: ("__lt__", operator.lt),
    ast.LtE: ("__le__", operator.le),
    ast.Gt: ("__gt__", operator.gt),
    ast.GtE: ("__ge__", operator.ge),
}
Scope = dict[str, Value]


def is_tuple_like(value: Value) -> bool:
    return isinstance(value, Instance) and value.cls.has_base("NamedTuple")


def plain(value: Value) -> Value:
    """Return the tuple of a NamedTuple instance, the value of a string enumeration's member, or the value itself."""
    if is_tuple_like(value):
        return tuple(value.fields.values())
    if isinstance(value, Member) and value.cls.has_base("str", "StrEnum", "int", "IntEnum"):
        return value.value
    return value


class Expressions:
    """Evaluates expression nodes. `Interpreter` adds names, calls and statements."""

    def evaluate(self, node: ast.expr, scope: Scope) -> Value:
        """Return the value of an expression, or an Unknown if the source does not determine it."""
        method = getattr(self, f"eval_{type(node).__name__}", None)
        return method(node, scope) if method else Unknown(type(node).__name__)

    # Provided by Interpreter.
    def look_up(self, name: str, scope: Scope) -> Value:
        raise NotImplementedError

    def attribute(self, value: Value, name: str) -> Value:
        raise NotImplementedError

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope) -> Value:
        raise NotImplementedError

    def decide(self, value: Value, node: ast.AST, scope: Scope) -> bool:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        raise NotImplementedError

    def make_function(self, node: Any, scope: Scope) -> Function:
        raise NotImplementedError

    def truth(self, value: Value) -> bool | None:
        """Return the truth of a value, or None if it is unknown."""
        if isinstance(value, Unknown):
            return None
        if isinstance(value, Instance | Member | Class | Function | Bound | Host | Module):
            return True
        try:
            return bool(value)
        except Exception:
            return None

    def eval_Constant(self, node: ast.Constant, scope: Scope) -> Value:
        return node.value

    def eval_Name(self, node: ast.Name, scope: Scope) -> Value:
        return self.look_up(node.id, scope)

    def eval_Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.attribute(self.evaluate(node.value, scope), node.attr)

    def eval_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.evaluate(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def eval_Lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        return self.make_function(node, scope)

    def eval_Starred(self, node: ast.Starred, scope: Scope) -> Value:
        return self.evaluate(node.value, scope)

    def eval_JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> str:
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else self.text(self.evaluate(part.value, scope), part)
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )

    def text(self, value: Value, part: ast.FormattedValue | None = None) -> str:
        """Return how a value is printed; an unknown one as its source text in braces."""
        if isinstance(value, Unknown):
            return "{" + (ast.unparse(part.value) if part else value.label) + "}"
        if isinstance(value, Instance):
            return f"{value.cls.name}({', '.join(f'{k}={self.text(v)}' for k, v in value.fields.items())})"
        if isinstance(value, Member):
            return str(plain(value))
        return repr(value) if part and part.conversion == ord("r") else str(value)

    def items(self, nodes: list[ast.expr], scope: Scope) -> Iterator[Value]:
        """Yield the values of a list display, with starred ones unpacked."""
        for node in nodes:
            value = self.evaluate(node, scope)
            if isinstance(node, ast.Starred):
                yield from self.iterate(value)
            else:
                yield value

    def iterate(self, value: Value) -> list[Value]:
        """Return the elements of a value; none if they are unknown."""
        if isinstance(value, Class):
            return [m for m in value.names.values() if isinstance(m, Member)]
        if isinstance(value, Unknown | Host | Symbol) or value is None:
            return []
        try:
            return list(plain(value))
        except TypeError:
            return []

    def eval_List(self, node: ast.List, scope: Scope) -> Value:
        return list(self.items(node.elts, scope))

    def eval_Tuple(self, node: ast.Tuple, scope: Scope) -> Value:
        return tuple(self.items(node.elts, scope))

    def eval_Set(self, node: ast.Set, scope: Scope) -> Value:
        return set(self.items(node.elts, scope))

    def eval_Dict(self, node: ast.Dict, scope: Scope) -> Value:
        made: dict[Value, Value] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.evaluate(value, scope)
            if key is not None:
                made[self.evaluate(key, scope)] = found
            elif isinstance(found, dict):
                made.update(found)
        return made

    def eval_BoolOp(self, node: ast.BoolOp, scope: Scope) -> Value:
        stop = isinstance(node.op, ast.Or)
        unknown: Value = None
        value: Value = None
        for part in node.values:
            value = self.evaluate(part, scope)
            truth = self.truth(value)
            if truth is stop:
                return value
            if truth is None:
                unknown = value
        return value if unknown is None else Unknown(ast.unparse(node))

    def eval_UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return Unknown(ast.unparse(node)) if truth is None else not truth
        try:
            return -value if isinstance(node.op, ast.USub) else ~value if isinstance(node.op, ast.Invert) else +value
        except TypeError:
            return Unknown(ast.unparse(node))

    def eval_BinOp(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = plain(self.evaluate(node.left, scope)), plain(self.evaluate(node.right, scope))
        try:
            return BINARY[type(node.op)](left, right)
        except Exception:
            return Unknown(ast.unparse(node))

    def eval_IfExp(self, node: ast.IfExp, scope: Scope) -> Value:
        chosen = self.decide(self.evaluate(node.test, scope), node.test, scope)
        return self.evaluate(node.body if chosen else node.orelse, scope)

    def eval_Compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.evaluate(node.left, scope)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(comparator, scope)
            result = self.compare(op, left, right)
            if result is not True:
                return Unknown(ast.unparse(node)) if result is None else False
            left = right
        return True

    def compare(self, op: ast.cmpop, left: Value, right: Value) -> bool | None:
        """Return the result of one comparison, or None if it is unknown."""
        if isinstance(op, ast.Is | ast.IsNot):
            if isinstance(left, Unknown) or isinstance(right, Unknown):
                # An unknown object is taken to exist.
                same = False if left is None or right is None else None
            else:
                same = left is right or (isinstance(left, Member) and left == right)
            return same if same is None or isinstance(op, ast.Is) else not same
        if isinstance(op, ast.In | ast.NotIn):
            found = self.contains(right, left)
            return found if found is None or isinstance(op, ast.In) else not found
        name, function = COMPARE[type(op)]
        if isinstance(left, Instance) and isinstance(left.cls.find(name), Function):
            result = Bound(left.cls.find(name), left)(right)
            if result is not NotImplemented:
                return self.truth(result)
        left, right = plain(left), plain(right)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return None
        try:
            return self.truth(function(left, right))
        except Exception:
            return None

    def contains(self, container: Value, item: Value) -> bool | None:
        if isinstance(container, Unknown) or isinstance(item, Unknown):
            return False if isinstance(container, tuple | list | set | dict) and not container else None
        if isinstance(container, Class):
            container = self.iterate(container)
        try:
            if plain(item) in plain(container) or item in container:
                return True
            if isinstance(container, tuple | list | set) and plain(item) in [plain(one) for one in container]:
                return True
        except Exception:
            return None
        unknown = not isinstance(container, str) and any(isinstance(one, Unknown) for one in container)
        return None if unknown else False

    def eval_Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value = self.evaluate(node.value, scope)
        if isinstance(value, Symbol) and value == "typing.Literal":
            parts = self.evaluate(node.slice, scope)
            parts = parts if isinstance(parts, tuple) and not isinstance(parts, LiteralType) else (parts,)
            flat: list[Value] = []
            for part in parts:
                flat.extend(part if isinstance(part, LiteralType) else [part])
            return LiteralType(flat)
        if isinstance(value, Class):
            key = self.evaluate(node.slice, scope)
            found = value.names.get(key) if isinstance(key, str) else None
            return found if isinstance(found, Member) else value  # a generic class keeps its identity
        if isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            low, high, step = [None if x is None else self.evaluate(x, scope) for x in parts]
            key = slice(low, high, step)
        else:
            key = self.evaluate(node.slice, scope)
        if isinstance(value, Instance) and isinstance(value.cls.find("__getitem__"), Function):
            return Bound(value.cls.find("__getitem__"), value)(key)
        try:
            return plain(value)[key]
        except Exception:
            return Unknown(ast.unparse(node))

    def comprehend(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        """Yield the scope of each round of a comprehension."""
        if not generators:
            yield scope
            return
        first = generators[0]
        for item in self.iterate(self.evaluate(first.iter, scope)):
            inner = {**scope}
            self.assign(first.target, item, inner)
            if all(self.decide(self.evaluate(test, inner), test, inner) for test in first.ifs):
                yield from self.comprehend(generators[1:], inner)

    def eval_ListComp(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Value:
        return [self.evaluate(node.elt, inner) for inner in self.comprehend(node.generators, scope)]

    eval_GeneratorExp = eval_ListComp

    def eval_SetComp(self, node: ast.SetComp, scope: Scope) -> Value:
        return {self.evaluate(node.elt, inner) for inner in self.comprehend(node.generators, scope)}

    def eval_DictComp(self, node: ast.DictComp, scope: Scope) -> Value:
        return {
            self.evaluate(node.key, inner): self.evaluate(node.value, inner)
            for inner in self.comprehend(node.generators, scope)
        }

    def eval_Call(self, node: ast.Call, scope: Scope) -> Value:
        function = self.evaluate(node.func, scope)
        args = list(self.items(node.args, scope))
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            if keyword.arg:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs.update(value)
        result = self.call(function, args, kwargs, node, scope)
        return Unknown(ast.unparse(node)[:120]) if result is MISSING else result
