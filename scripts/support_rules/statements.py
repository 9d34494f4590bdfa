"""Execution of statements by the static interpreter."""

import ast
import builtins
from typing import Any

from .expressions import Expressions, Scope, plain
from .values import (
    MISSING,
    Bound,
    Class,
    Function,
    Host,
    Instance,
    Lazy,
    Member,
    Module,
    OutOfSteps,
    Raised,
    Unknown,
    Value,
)

MAX_STEPS = 300_000  # statements until `steps` is reset; SGLang's argument resolution needs about 40,000
MAX_ROUNDS = 2_000  # of a while loop
ENUMS = ("Enum", "StrEnum", "IntEnum", "IntFlag", "Flag")
KINDS = {"staticmethod": "static", "classmethod": "class", "property": "property", "cached_property": "property"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Return(Exception):
    """A return statement."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Leave(Exception):
    """A break or continue statement."""

    def __init__(self, stop: bool) -> None:
        self.stop = stop


class Statements(Expressions):
    """Runs statement nodes."""

    def __init__(self) -> None:
        self.assumed: list[str] = []
        self.steps = 0

    # Provided by Interpreter.
    def module(self, name: str) -> Value:
        raise NotImplementedError

    def is_missing(self, module: str) -> bool:
        raise NotImplementedError

    def call_function(self, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise NotImplementedError

    def make_instance(self, cls: Class, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise NotImplementedError

    def run_all(self, statements: list[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self.run(statement, scope)

    def run(self, node: ast.stmt, scope: Scope) -> None:
        """Run one statement."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise OutOfSteps
        method = getattr(self, f"run_{type(node).__name__}", None)
        if method:
            method(node, scope)

    def decide(self, value: Value, node: ast.AST, scope: Scope) -> bool:
        """Return the truth of a condition. An unknown one is not met, and recorded."""
        truth = self.truth(value)
        if truth is not None:
            return truth
        module = scope["__module__"]
        self.assumed.append(f"{module.name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"[:160])
        return False

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            if target.id in scope.get("__global__", ()):
                scope["__module__"].names[target.id] = value
                return
            holder = scope
            if target.id in scope.get("__nonlocal__", ()):
                while target.id not in holder and "__parent__" in holder:
                    holder = holder["__parent__"]
            holder[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = self.iterate(value)
            for i, one in enumerate(target.elts):
                known = len(parts) == len(target.elts) and not isinstance(one, ast.Starred)
                self.assign(one, parts[i] if known else Unknown(ast.unparse(one)), scope)
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value, scope)
            if isinstance(owner, Instance):
                owner.fields[target.attr] = value
            elif isinstance(owner, Host):
                setattr(owner, target.attr, value)
            elif isinstance(owner, Class | Module):
                owner.names[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner, key = self.evaluate(target.value, scope), self.evaluate(target.slice, scope)
            if isinstance(owner, dict | list) and not isinstance(key, Unknown):
                try:
                    owner[key] = value
                except (TypeError, IndexError):
                    return

    def run_Expr(self, node: ast.Expr, scope: Scope) -> None:
        if isinstance(node.value, ast.Yield | ast.YieldFrom):
            found = self.evaluate(node.value.value, scope) if node.value.value else None
            if "__yields__" in scope:
                scope["__yields__"].extend([found] if isinstance(node.value, ast.Yield) else self.iterate(found))
            return
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, scope)

    def run_Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def run_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        value = MISSING if node.value is None else self.evaluate(node.value, scope)
        if "__fields__" in scope and isinstance(node.target, ast.Name):
            scope["__fields__"][node.target.id] = value
        if value is not MISSING:
            self.assign(node.target, value, scope)

    def run_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        old = self.evaluate(node.target, scope)
        self.assign(node.target, self.eval_BinOp(ast.BinOp(Given(old), node.op, node.value), scope), scope)

    def eval_Given(self, node: "Given", scope: Scope) -> Value:
        return node.known

    def run_Return(self, node: ast.Return, scope: Scope) -> None:
        raise Return(None if node.value is None else self.evaluate(node.value, scope))

    def run_If(self, node: ast.If, scope: Scope) -> None:
        chosen = self.decide(self.evaluate(node.test, scope), node.test, scope)
        self.run_all(node.body if chosen else node.orelse, scope)

    def run_For(self, node: ast.For, scope: Scope) -> None:
        for item in self.iterate(self.evaluate(node.iter, scope)):
            self.assign(node.target, item, scope)
            try:
                self.run_all(node.body, scope)
            except Leave as left:
                if left.stop:
                    return
        self.run_all(node.orelse, scope)

    def run_While(self, node: ast.While, scope: Scope) -> None:
        for _ in range(MAX_ROUNDS):
            if not self.decide(self.evaluate(node.test, scope), node.test, scope):
                return
            try:
                self.run_all(node.body, scope)
            except Leave as left:
                if left.stop:
                    return

    def run_Break(self, node: ast.Break, scope: Scope) -> None:
        raise Leave(True)

    def run_Continue(self, node: ast.Continue, scope: Scope) -> None:
        raise Leave(False)

    def run_With(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        self.run_all(node.body, scope)

    def run_Assert(self, node: ast.Assert, scope: Scope) -> None:
        if self.truth(self.evaluate(node.test, scope)) is False:
            text = self.text(self.evaluate(node.msg, scope)) if node.msg else f"assert {ast.unparse(node.test)}"
            raise Raised(AssertionError, text, self.place(node, scope))

    def run_Raise(self, node: ast.Raise, scope: Scope) -> None:
        value = self.evaluate(node.exc, scope) if node.exc else scope.get("__raised__", Unknown("exception"))
        if isinstance(value, Raised):
            raise value
        kind = type(value) if isinstance(value, BaseException) else value if isinstance(value, type) else RuntimeError
        text = str(value) if isinstance(value, BaseException) else self.text(value)
        raise Raised(kind, text, self.place(node, scope))

    def place(self, node: ast.AST, scope: Scope) -> str:
        return f"{scope['__module__'].name.replace('.', '/')}.py:{getattr(node, 'lineno', 0)}"

    def run_Try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self.run_all(node.body, scope)
            self.run_all(node.orelse, scope)
        except Raised as raised:
            for handler in node.handlers:
                kinds = self.evaluate(handler.type, scope) if handler.type else BaseException
                kinds = kinds if isinstance(kinds, tuple) else (kinds,)
                if any(isinstance(k, type) and issubclass(raised.kind, k) for k in kinds):
                    scope["__raised__"] = raised
                    if handler.name:
                        scope[handler.name] = raised
                    self.run_all(handler.body, scope)
                    break
            else:
                raise
        finally:
            self.run_all(node.finalbody, scope)

    def run_Match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.evaluate(node.subject, scope)
        for case in node.cases:
            if self.matches(case.pattern, subject, scope) and (
                case.guard is None or self.decide(self.evaluate(case.guard, scope), case.guard, scope)
            ):
                self.run_all(case.body, scope)
                return

    def matches(self, pattern: ast.pattern, subject: Value, scope: Scope) -> bool:
        if isinstance(pattern, ast.MatchOr):
            return any(self.matches(one, subject, scope) for one in pattern.patterns)
        if isinstance(pattern, ast.MatchValue):
            return self.compare(ast.Eq(), subject, self.evaluate(pattern.value, scope)) is True
        if isinstance(pattern, ast.MatchSingleton):
            return subject is pattern.value
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            if pattern.name:
                scope[pattern.name] = subject
            return True
        return False

    def run_Global(self, node: ast.Global, scope: Scope) -> None:
        scope["__global__"] = {*scope.get("__global__", ()), *node.names}

    def run_Nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope["__nonlocal__"] = {*scope.get("__nonlocal__", ()), *node.names}

    def run_Delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.pop(target.id, None)

    def run_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            self.require(alias.name, node, scope)
            scope[alias.asname or alias.name.split(".")[0]] = Lazy(
                alias.name if alias.asname else alias.name.split(".")[0]
            )

    def run_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        module: Module = scope["__module__"]
        base = node.module or ""
        if node.level:
            package = module.name.split(".")
            is_package = module.path is not None and module.path.name == "__init__.py"
            package = package[: len(package) - node.level + (1 if is_package else 0)]
            base = ".".join([*package, *filter(None, [base])])
        self.require(base, node, scope)
        for alias in node.names:
            if alias.name == "*":
                found = self.module(base)
                if isinstance(found, Module):
                    scope.update({k: v for k, v in found.names.items() if not k.startswith("_")})
            else:
                scope[alias.asname or alias.name] = Lazy(base, alias.name)

    def require(self, name: str, node: ast.stmt, scope: Scope) -> None:
        if self.is_missing(name):
            raise Raised(ImportError, f"No module named '{name}'", self.place(node, scope))

    def run_FunctionDef(self, node: Definition, scope: Scope) -> None:
        function = self.make_function(node, scope)
        made: Value = function
        for decorator in reversed(node.decorator_list):
            name = ast.unparse(decorator).rsplit(".", 1)[-1].split("(")[0]
            if name in KINDS:
                made.kind = KINDS[name]
            elif name in ("setter", "overload", "deleter"):
                return
            else:
                made = self.decorate(decorator, made, scope)
        scope[node.name] = made

    run_AsyncFunctionDef = run_FunctionDef

    def decorate(self, decorator: ast.expr, made: Value, scope: Scope) -> Value:
        """Apply a decorator of the source; one of a library changes nothing here."""
        wrapper = self.evaluate(decorator, scope)
        if isinstance(wrapper, Function | Bound):
            result = wrapper(made)
            return result if isinstance(result, Function | Class) else made
        return made

    def make_function(self, node: Any, scope: Scope) -> Function:
        spec: ast.arguments = node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        defaults = dict(zip(reversed(names), [self.evaluate(d, scope) for d in reversed(spec.defaults)], strict=False))
        for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if default is not None:
                defaults[arg.arg] = self.evaluate(default, scope)
        return Function(
            name=getattr(node, "name", "<lambda>"),
            node=node,
            module=scope["__module__"],
            closure={} if scope is scope["__module__"].names else scope,
            call=self.call_function,
            owner=scope.get("__class__"),
            defaults=defaults,
        )

    def run_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self.evaluate(base, scope) for base in node.bases]
        cls = Class(node.name, scope["__module__"], bases, line=node.lineno)
        at_module = scope is scope["__module__"].names
        inner: Scope = {"__module__": scope["__module__"], "__class__": cls, "__fields__": cls.fields}
        if not at_module:
            inner["__parent__"] = scope
        for statement in node.body:
            try:
                self.run(statement, inner)
            except Raised:
                continue
        hidden = ("__module__", "__class__", "__fields__", "__parent__")
        cls.names.update({k: v for k, v in inner.items() if k not in hidden})
        for name, value in list(cls.names.items()) if cls.has_base(*ENUMS) else ():
            if not name.startswith("_") and not isinstance(value, Function | Lazy | Class):
                cls.names[name] = Member(cls, name, name.lower() if isinstance(value, Unknown) else plain(value))
        cls.names["__make__"] = self.make_instance
        made: Value = cls
        for decorator in reversed(node.decorator_list):
            made = self.decorate(decorator, made, scope)
        scope[node.name] = made


class Given(ast.expr):
    """An expression whose value is already known."""

    def __init__(self, known: Value) -> None:
        super().__init__()
        self.known = known


EXCEPTIONS = {k: v for k, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, BaseException)}
