"""Law 10: a grown host is an ordinary module, so `torch.export` takes it as it stands."""

from dataclasses import replace
from itertools import cycle, product

import pytest
import torch

from esper.kasmina import Host, blueprint_names, build_host, load_model, save_model
from esper.kasmina.hosts import host_kind
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.specs import Stream
from toys import SPECS, bits

ALPHAS = (0.0, 0.5, 1.0)
Planted = list[tuple[str, Graft, float]]


def every_blueprint(kind: str) -> Planted:
    """Each blueprint once, with grafts and alphas taken in turn."""
    names = blueprint_names(host_kind(kind).stream)
    return list(zip(names, cycle(Graft), cycle([1.0, 0.5, 0.5, 0.0]), strict=False))


def grown(kind: str, seeds: Planted) -> Host:
    """A host with one slot for each of these seeds. Silent seeds are full of NaN."""
    host = build_host(replace(SPECS[kind], widths=(4,) * len(seeds), slots=1), rng_seed=1)
    generator = torch.Generator().manual_seed(5)
    for s, (blueprint, graft, alpha) in enumerate(seeds):
        host.slot(s).plant(build_seed(host.slot_specs[s], blueprint, graft))
        for p in host.slot(s).parameters():
            p.data.uniform_(-0.1, 0.1, generator=generator) if alpha else p.data.fill_(torch.nan)
        host.slot(s).alpha = alpha
    return host.eval()


def grown_at_each_alpha(kind: str) -> Host:
    return grown(kind, [(blueprint_names(host_kind(kind).stream)[0], Graft.ADD, alpha) for alpha in ALPHAS])


def examples(host: Host, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    if host.stream is Stream.TOKENS:
        return torch.randint(host.spec.outputs, (count, *host.spec.inputs), generator=generator)
    return torch.randn(count, *host.spec.inputs, generator=generator)


def parameters_read(exported: torch.export.ExportedProgram) -> set[str]:
    nodes = {node.name: node for node in exported.graph.nodes}
    return {name for node, name in exported.graph_signature.inputs_to_parameters.items() if nodes[node].users}


@torch.no_grad()
def assert_exported_without_silent_seeds(host: Host) -> None:
    exported = torch.export.export(host, (examples(host),))
    for x in (examples(host), examples(host).roll(1, -1)):
        out = exported.module()(x)
        assert out.isfinite().all()
        assert torch.equal(bits(out), bits(host(x)))
    silent = tuple(f"slots.{s}." for s in range(len(host.slots)) if host.slot(s).alpha == 0)
    assert parameters_read(exported) == {name for name, _ in host.named_parameters() if not name.startswith(silent)}


@pytest.mark.parametrize("kind", SPECS)
def test_an_exported_host_computes_what_the_host_computes_and_leaves_silent_seeds_out(kind):
    assert_exported_without_silent_seeds(grown(kind, every_blueprint(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("graft", Graft)
@pytest.mark.parametrize("kind", SPECS)
def test_hosts_with_every_blueprint_graft_and_alpha_can_be_exported(kind, graft, alpha):
    names = blueprint_names(host_kind(kind).stream)
    assert_exported_without_silent_seeds(grown(kind, list(product(names, [graft], [alpha]))))


@pytest.mark.parametrize("kind", SPECS)
@torch.no_grad()
def test_an_exported_host_takes_batches_of_any_size(kind):
    host = grown(kind, every_blueprint(kind))
    batch = torch.export.Dim("batch")
    exported = torch.export.export(host, (examples(host),), dynamic_shapes=({0: batch},)).module()
    for count in (1, 7):
        torch.testing.assert_close(exported(examples(host, count)), host(examples(host, count)))


@pytest.mark.parametrize("kind", SPECS)
@torch.no_grad()
def test_a_host_loaded_from_a_file_is_exported_with_the_alphas_it_was_saved_with(kind, tmp_path):
    host = grown_at_each_alpha(kind)
    save_model(tmp_path / "model", host)
    loaded = load_model(tmp_path / "model", lambda: build_host(host.spec)).eval()
    assert [loaded.slot(s).alpha for s in range(3)] == list(ALPHAS)
    x = examples(host)
    assert torch.equal(bits(torch.export.export(loaded, (x,)).module()(x)), bits(host(x)))


@pytest.mark.parametrize("kind", SPECS)
@torch.no_grad()
def test_alphas_given_as_tensors_stay_inputs_of_the_exported_host(kind):
    """A seed that is silent at the alpha given is not heard, NaN or not."""
    host = grown_at_each_alpha(kind)
    x = examples(host)
    exported = torch.export.export(host, (x, {s: torch.tensor(0.25) for s in range(3)})).module()
    for alphas in ((0.0, 0.7, 0.3), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0)):
        given = {s: torch.tensor(alpha) for s, alpha in enumerate(alphas)}
        out = exported(x, given)
        assert out.isfinite().all()
        torch.testing.assert_close(out, host(x, given))


@pytest.mark.parametrize("kind", SPECS)
@torch.no_grad()
def test_alphas_given_as_numbers_are_constants_of_the_exported_host(kind):
    host = grown_at_each_alpha(kind)
    x, given = examples(host), {0: 0.0, 1: 0.0, 2: 0.3}
    exported = torch.export.export(host, (x, given))
    assert not any(name.startswith(("slots.0.", "slots.1.")) for name in parameters_read(exported))
    assert torch.equal(bits(exported.module()(x, given)), bits(host(x, given)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", SPECS)
@torch.no_grad()
def test_a_host_on_a_gpu_is_exported_without_our_kernels(kind):
    host = grown(kind, every_blueprint(kind)).cuda()
    x = examples(host).cuda()
    exported = torch.export.export(host, (x,)).module()
    torch.testing.assert_close(exported(x), host(x), atol=1e-4, rtol=1e-4)
