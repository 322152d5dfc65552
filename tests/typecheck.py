"""Runtime type checks for tests; an int is welcome where a float is.

`jaxtyping.jaxtyped` binds the arguments of every call and checks them twice, which is half of the time of many tests.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError
from jaxtyping._decorator import _destring_annotation
from jaxtyping._storage import pop_shape_memo, push_shape_memo

thorough = jaxtyping.jaxtyped
check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))


def axes(annotation: Any) -> Iterator[str]:
    """The axes of every array in an annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        yield annotation.dim_str
    for part in get_args(annotation):
        yield from axes(part)


def once(fn: Any = None, *, typechecker: Callable[[Any], Any] = check) -> Any:
    """Decorate as `jaxtyping.jaxtyped` does, with one check per call where an axis is not named after an argument."""
    if fn is None:
        return partial(once, typechecker=typechecker)
    if not isinstance(fn, FunctionType) or inspect.isgeneratorfunction(fn):
        return thorough(fn, typechecker=typechecker)
    twin = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    twin.__kwdefaults__, twin.__qualname__, twin.__module__ = fn.__kwdefaults__, fn.__qualname__, fn.__module__
    twin.__annotations__ = {name: _destring_annotation(of, fn.__globals__) for name, of in fn.__annotations__.items()}
    arrays = [of for annotation in twin.__annotations__.values() for of in axes(annotation)]
    if any("{" in of for of in arrays):
        return thorough(fn, typechecker=typechecker)
    checked = typechecker(twin)
    if not arrays:
        return wraps(fn)(checked)

    @wraps(fn)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        push_shape_memo({})
        try:
            return checked(*args, **kwargs)
        finally:
            pop_shape_memo()

    return scoped


jaxtyping.jaxtyped = once
