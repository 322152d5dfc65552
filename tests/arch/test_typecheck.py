"""Functions of esper are checked while tests run, in the quick way of `typecheck` as in that of jaxtyping."""

from collections.abc import Callable, Iterator

import pytest
import torch
from jaxtyping import Bool, Float, TypeCheckError
from torch import Tensor

import typecheck
from esper.simic.advantages import standardize

WAYS = pytest.mark.parametrize("way", [typecheck.once, typecheck.thorough])


def add(x: Float[Tensor, "N S"], y: Float[Tensor, " N"], scale: float = 1) -> Float[Tensor, "N S"]:
    return x + scale * y[:, None]


def forget(x: Float[Tensor, "N S"]) -> Float[Tensor, " N"]:
    return x[0]


def several(x: tuple[Float[Tensor, " N"], ...], y: Bool[Tensor, " N"] | None) -> int:
    return len(x) if y is None else int(y.sum())


def count(x: Float[Tensor, " N"], size: int) -> Float[Tensor, "N {size}"]:
    return x[:, None].repeat(1, 2)


def plain(x: int, *, names: "list[str]") -> str:
    return names[x]


def each(x: Float[Tensor, "N S"]) -> Iterator[Float[Tensor, " S"]]:
    yield from x


@WAYS
def test_what_agrees_is_left_alone(way):
    check = way(typechecker=typecheck.check)
    assert check(add)(torch.ones(2, 3), torch.ones(2), scale=2).tolist() == [[3.0] * 3] * 2
    assert check(forget)(torch.ones(2, 2)).shape == (2,)
    assert check(several)((torch.ones(2), torch.zeros(2)), None) == 2
    assert check(count)(torch.ones(3), 2).shape == (3, 2)
    assert check(plain)(0, names=["a"]) == "a"
    assert len(list(check(each)(torch.ones(2, 3)))) == 2
    assert check(add).__name__ == "add"


@WAYS
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(add, (torch.ones(2, 3), torch.ones(3)), id="an axis of two arguments"),
        pytest.param(add, (torch.ones(2, 3), torch.ones(2).double().long()), id="a type of numbers"),
        pytest.param(add, (torch.ones(2), torch.ones(2)), id="too few axes"),
        pytest.param(add, (torch.ones(2, 3), torch.ones(2), "1"), id="a value with a default"),
        pytest.param(forget, (torch.ones(2, 3),), id="an axis of the result"),
        pytest.param(several, ((torch.ones(2),), torch.ones(3).bool()), id="an axis within a tuple"),
        pytest.param(count, (torch.ones(3), 4), id="an axis named after an argument"),
        pytest.param(plain, (0.5,), id="no arrays"),
        pytest.param(each, (torch.ones(2),), id="a generator"),
    ],
)
def test_what_does_not_is_noticed(way, function: Callable, arguments: tuple):
    options = {"names": ["a"]} if function is plain else {}
    with pytest.raises(TypeCheckError):
        way(typechecker=typecheck.check)(function)(*arguments, **options)


def test_functions_of_esper_are_checked():
    with pytest.raises(TypeCheckError):
        standardize(torch.ones(3), torch.ones(2).bool())
