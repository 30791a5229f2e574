"""On a GPU: an exported file away from the layer it was made for is PyTorch, at PyTorch's price; and so is a kernel that the
GPU has no shared memory for, or whose launch is refused."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.require import require
from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.variants import find
from workbench.drive.exporting.best_recipe import best_recipe
from workbench.drive.exporting.export import constructor_arguments, export_text
from workbench.drive.exporting.recipe import Recipe
from workbench.measure.clock.timing import measure_in_turns

DEVICE = torch.device("cuda:0")
MOST = 1.05          # times what nn.ConvTranspose takes
SMALL = Workload(ConvTranspose(1, 32, 64, 5), 2, (4096,))
# Constructor arguments, input: none of them is a layer that a kernel of the file was made for.
OTHERS: dict[str, list[tuple[dict[str, Any], tuple[int, ...]]]] = {
    "kb81": [({"in_channels": 64, "out_channels": 64, "kernel_size": 5, "stride": 1, "padding": 0, "dilation": 3},
          (16, 64, 64, 128)),
        ({"in_channels": 32, "out_channels": 64, "kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1},
          (16, 32, 128, 128))],
    "kb74": [({"in_channels": 64, "out_channels": 64, "kernel_size": 5, "stride": 1, "padding": 0, "dilation": 3},
          (16, 64, 16384)),
        ({"in_channels": 128, "out_channels": 128, "kernel_size": 3, "stride": 1, "padding": 0, "dilation": 1},
          (16, 128, 16384))],
    "kb64": [({"in_channels": 64, "out_channels": 64, "kernel_size": 5, "stride": 1, "padding": 0},
          (16, 64, 16384)),
        ({"in_channels": 128, "out_channels": 128, "kernel_size": 3, "stride": 2, "padding": 1},
          (16, 128, 8192))],
}


@pytest.fixture(scope="module", autouse=True)
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    require(torch.cuda.is_available(), "no CUDA GPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield


def loaded(text: str) -> dict[str, Any]:
    sys.modules["exported"] = module = ModuleType("exported")     # torch.compile imports it
    namespace = vars(module)
    exec(compile(text, "<exported file>", "exec"), namespace)
    return namespace


@pytest.fixture(scope="module", params=OTHERS)
def best(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The file of `export --best --preset ...` for the GPU that is here, executed."""
    chosen = preset(request.param)
    arch = "sm_" + "".join(map(str, torch.cuda.get_device_capability(DEVICE)))
    recipe, _ = best_recipe(chosen.workload(), arch)
    return request.param, loaded(export_text(recipe, constructor=chosen, arch=arch))


def pair(namespace: dict[str, Any], dims: int, **arguments: Any) -> tuple[nn.Module, nn.Module]:
    """ModelNew and nn.ConvTranspose with the same parameters."""
    ours = namespace["ModelNew"](**arguments).to(DEVICE)
    theirs = getattr(nn, f"ConvTranspose{dims}d")(**{"bias": False, **arguments}).to(DEVICE)
    theirs.load_state_dict({name.rpartition(".")[2]: value for name, value in ours.state_dict().items()})
    return ours, theirs


def close(ours: torch.Tensor, theirs: torch.Tensor, most: float) -> None:
    assert (ours - theirs).norm() <= most * theirs.norm()


def forward_of(module: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    def run() -> None:
        with torch.no_grad():
            module(x)
    return run


def both_ways_of(module: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    x = x.detach().requires_grad_()
    wanted = [x, *module.parameters()]
    grad_output = torch.ones_like(module(x))
    return lambda: torch.autograd.grad(module(x), wanted, grad_output)


def in_bursts(runs: list[Callable[[], Any]], calls: int = 30, rounds: int = 15) -> float:
    """Wall time of many calls, the host's part included, in turns: the ratio of the medians, first over second."""
    taken: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(rounds):
        for mine, run in zip(taken, runs, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            torch.cuda.synchronize()
            mine.append(time.perf_counter() - start)
    return median(taken[0]) / median(taken[1])


@pytest.mark.parametrize("case", [0, 1])
def test_other_constructor_arguments_are_pytorch_at_its_price(best: tuple[str, dict[str, Any]], case: int) -> None:
    name, namespace = best
    arguments, shape = OTHERS[name][case]
    ours, theirs = pair(namespace, len(shape) - 2, **arguments)
    torch.manual_seed(1)
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, two = ours(x), theirs(x)
        said = ours.kernels(x)
        if by_pytorch := all(what.startswith("PyTorch") for what in said.values()):
            assert type(one.grad_fn) is type(two.grad_fn)
        close(one, two, 1e-3 if by_pytorch else 2e-3)
        grad_output = torch.randn_like(one)
        for mine, their in zip(torch.autograd.grad(one, [x, *ours.parameters()], grad_output),
                               torch.autograd.grad(two, [x, *theirs.parameters()], grad_output), strict=True):
            close(mine, their, 1e-3 if by_pytorch else 2e-3)
    print(name, arguments, said, flush=True)
    assert not any(kernel.launchers for kernel in namespace["_KERNELS"])     # those were made for another layer
    for what, make in (("forward", forward_of), ("forward + backward", both_ways_of)):
        runs = [make(ours, x.detach()), make(theirs, x.detach())]
        a, b = measure_in_turns(runs, device="cuda:0", effort="normal")
        cold, bursts = median(a.samples) / median(b.samples), in_bursts(runs)
        print(f"{name} {arguments} {what}: {median(a.samples):.4f} / {median(b.samples):.4f} ms = {cold:.3f}, "
              f"in bursts {bursts:.3f}", flush=True)
        assert cold <= MOST and bursts <= MOST, what


def test_the_layer_it_was_made_for_is_its_kernels(best: tuple[str, dict[str, Any]]) -> None:
    name, namespace = best
    chosen = preset(name)
    names = dict(zip(chosen.constructor, constructor_arguments(chosen.layer, chosen), strict=True))
    ours, theirs = pair(namespace, chosen.layer.dims, **names)
    work = chosen.workload("small")
    x = torch.randn((work.batch, chosen.layer.in_channels, *work.input_size), device=DEVICE, requires_grad=True)
    close(ours(x), theirs(x), 2e-3)
    ours(x).sum().backward()
    launched = {kernel.direction for kernel in namespace["_KERNELS"] if kernel.launchers}
    assert launched and not any(kernel.refused for kernel in namespace["_KERNELS"]), launched


def fused_text() -> str:
    return export_text(Recipe(SMALL, backward=Candidate(find("fused_mma", "backward"), SMALL.layer, "float32", {})))


def gradients(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])


def made_of(text: str) -> tuple[dict[str, Any], nn.Module, nn.Module, torch.Tensor]:
    namespace = loaded(text)
    ours, theirs = pair(namespace, 1, in_channels=32, out_channels=64, kernel_size=5, bias=True)
    return namespace, ours, theirs, torch.randn((2, 32, 4096), device=DEVICE, requires_grad=True)


def test_what_does_not_fit_the_gpu_is_not_even_built(recwarn: pytest.WarningsRecorder) -> None:
    limit = loaded(fused_text())["_gpu"](DEVICE)[1]
    assert 96 * 1024 < limit < 1024 * 1024
    text, count = re.subn(r"shared_bytes=[1-9]\d+", f"shared_bytes={limit + 1}", fused_text())
    assert count == 1
    namespace, ours, theirs, x = made_of(text)
    for mine, their in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        close(mine, their, 1e-3)
    kernel = namespace["_KERNELS"][0]
    assert not kernel.launchers and not kernel.refused and not recwarn.list


def test_a_launch_that_needs_more_shared_memory_falls_back_with_one_warning() -> None:
    """The file believes that it fits: the launcher itself is refused, and the error it leaves behind is nobody else's."""
    text, count = re.subn(r"(cudaFuncAttributeMaxDynamicSharedMemorySize,\s*)Plan::SHARED_BYTES\)", r"\g<1>300 * 1024)",
                          fused_text())
    assert count == 1
    text = re.sub(r", shared_bytes=[1-9]\d+", "", text)
    namespace, ours, theirs, x = made_of(text)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            for mine, their in zip(gradients(ours, x), gradients(theirs, x), strict=True):
                close(mine, their, 1e-3)
    told = [str(w.message) for w in said if "is not used" in str(w.message)]
    assert len(told) == 1 and "backward/fused_mma" in told[0] and "PyTorch computes it instead" in told[0], told
    assert len(namespace["_KERNELS"][0].refused) == 1
    torch.cuda.synchronize()


def test_a_source_that_nvcc_refuses_falls_back_with_one_warning() -> None:
    namespace, ours, theirs, x = made_of(fused_text().replace("fused_shares<Layer, Tune>(sizes)", "no_such_name(sizes)"))
    with pytest.warns(RuntimeWarning, match="backward/fused_mma .* its build fails") as told:
        for _ in range(2):
            for mine, their in zip(gradients(ours, x), gradients(theirs, x), strict=True):
                close(mine, their, 1e-3)
    assert len([w for w in told if "is not used" in str(w.message)]) == 1
    assert not namespace["_KERNELS"][0].launchers


def test_the_default_of_81_is_tf32_in_a_process_of_its_own(tmp_path: Path) -> None:
    """With cudnn.benchmark its forward is fp32: that is not what PyTorch computes with no switch touched."""
    from workbench.drive.bench.defaults import defaults_of
    from workbench.drive.running.request import RunRequest
    from workbench.drive.running.runner import Runner
    from workbench.drive.sessions.session import Session
    session = Session.create(tmp_path)
    with Runner() as runner:
        runner.run(RunRequest(preset("kb81").workload(), (), device="cuda:0", directions=("forward",), strength="default",
                              effort="quick"), session)
    found = defaults_of([session])
    print([(t.name, t.precision, t.detail.kernels) for t in found])
    assert [(t.name, t.direction, t.precision) for t in found] == [("eager", "forward", "tf32")]
