"""On a GPU: an exported file away from the layer it was made for is PyTorch, at PyTorch's price; and so is a kernel that the
GPU has no shared memory for, or whose launch is refused. Then what a file promises of host time, builds, CUDA graphs,
torch.compile, other devices, and of 40 layers that nobody tuned."""

from __future__ import annotations

import os
import random
import re
import subprocess
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

from tests.shared import require
from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.variants import find
from workbench.drive.exporting.best_recipe import best_recipe, other_dtypes
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


def pair(namespace: dict[str, Any], dims: int, **arguments: Any) -> tuple[Any, nn.Module]:
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
    hosts: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(rounds):
        for mine, host, run in zip(taken, hosts, runs, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            host.append(time.perf_counter() - start)
            torch.cuda.synchronize()
            mine.append(time.perf_counter() - start)
    whole, own = ([median(one) / calls * 1e6 for one in some] for some in (taken, hosts))
    print("us a call:", ", ".join(f"{w:.1f} (host {o:.1f})" for w, o in zip(whole, own, strict=True)), flush=True)
    return whole[0] / whole[1]


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


def made_of(text: str) -> tuple[dict[str, Any], Any, nn.Module, torch.Tensor]:
    namespace = loaded(text)
    ours, theirs = pair(namespace, 1, in_channels=32, out_channels=64, kernel_size=5, bias=True)
    return namespace, ours, theirs, torch.randn((2, 32, 4096), device=DEVICE, requires_grad=True)


def test_what_does_not_fit_the_gpu_is_not_even_built_and_one_warning_says_so(recwarn: pytest.WarningsRecorder) -> None:
    limit = loaded(fused_text())["_gpu"](DEVICE)[1]
    assert 96 * 1024 < limit < 1024 * 1024
    text, count = re.subn(r"shared_bytes=[1-9]\d+", f"shared_bytes={limit + 1}", fused_text())
    assert count == 1
    namespace, ours, theirs, x = made_of(text)
    for mine, their in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        close(mine, their, 1e-3)
    kernel = namespace["_KERNELS"][0]
    assert not kernel.launchers and not kernel.refused
    said, = (str(w.message) for w in recwarn.list)
    assert said.endswith(f"was made for this layer, but it needs {limit + 1} bytes of shared memory, this GPU has {limit}.")
    other, theirs = pair(namespace, 1, in_channels=8, out_channels=16, kernel_size=3, bias=True)
    close(other(x[:, :8]), theirs(x[:, :8]), 1e-3)           # a layer that the file was not made for
    assert len(recwarn.list) == 1


def test_tensors_on_two_devices_raise_pytorchs_error() -> None:
    _, ours, theirs, x = made_of(fused_text())
    for input, home in ((x.detach().cpu(), DEVICE), (x.detach(), "cpu")):
        errors = []
        for module in (ours.to(home), theirs.to(home)):
            with pytest.raises(RuntimeError) as error:
                module(input)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


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


HOST = 1.2           # times the host time of nn.ConvTranspose
FILES = {1: "models/hifigan-3", 2: "models/sam-1", 3: "models/nnunet-4"}


def text_of(name: str) -> str:
    chosen = preset(name)
    arch = "sm_" + "".join(map(str, torch.cuda.get_device_capability(DEVICE)))
    recipe, _ = best_recipe(chosen.workload(), arch)
    return export_text([recipe, *other_dtypes(chosen.workload(), arch)], arch=arch)


def modules(namespace: dict[str, Any], layer: Any, dtype: torch.dtype = torch.float32) -> tuple[Any, nn.Module]:
    arguments = constructor_arguments(layer)
    ours = namespace["ModelNew"](*arguments).to(DEVICE, dtype)
    theirs = getattr(nn, f"ConvTranspose{layer.dims}d")(*arguments).to(DEVICE, dtype)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("dims", FILES)
def test_host_time_of_a_call(dims: int) -> None:
    """The smallest input: what is measured is the host."""
    namespace, layer = loaded(text_of(FILES[dims])), preset(FILES[dims]).layer
    ours, theirs = modules(namespace, layer)
    x = torch.randn((1, layer.in_channels, *[4] * dims), device=DEVICE)
    assert not ours.kernels(x)["forward"].startswith("PyTorch")
    for what, make in (("forward", forward_of), ("forward + backward", both_ways_of)):
        ratio = in_bursts([make(ours, x), make(theirs, x)], calls=200)
        print(f"{dims}-D {what}: {ratio:.2f} times the host time of nn.ConvTranspose", flush=True)
        assert ratio <= HOST, what


BUILD = """
import runpy, sys, time, torch
names = runpy.run_path(sys.argv[1], run_name="exported")
dtype, arguments, shape = names["_MADE_FOR"][0]
module = names["ModelNew"](**arguments).cuda()
x = torch.randn(shape, device="cuda", requires_grad=True)
torch.cuda.synchronize()
start = time.perf_counter(); y = module(x); torch.cuda.synchronize(); forward = time.perf_counter() - start
start = time.perf_counter(); y.sum().backward(); torch.cuda.synchronize(); backward = time.perf_counter() - start
print(forward, backward)
"""


def test_first_calls_and_their_check(tmp_path: Path) -> None:
    file = tmp_path / "model_new.py"
    file.write_text(text_of("kb74"))
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    for limits in ((5, 10), (1, 1)):                 # the second process finds them built
        done = subprocess.run([sys.executable, "-c", BUILD, str(file)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        print("first forward and backward, seconds:", done.stdout, flush=True)
        assert all(float(t) <= most for t, most in zip(done.stdout.split(), limits, strict=True)), done.stdout
    done = subprocess.run([sys.executable, str(file), "--check"], capture_output=True, text=True, env=environment)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def drawn(count: int) -> list[tuple[int, dict[str, Any], tuple[int, ...], torch.dtype]]:
    """Layers around those of published models: kernel = stride, kernel = 2 x stride, or an odd kernel."""
    pick = random.Random(17)
    found = []
    for number in range(count):
        dims, stride = 1 + number % 3, pick.choice([1, 2, 2, 4] if number % 3 == 0 else [1, 2, 2])
        kernel, padding = pick.choice([(stride, 0), (2 * stride, stride // 2), (3, 1), (5, 2)])
        channels = [pick.choice([16, 32, 48, 64, 128, 256, 320]) for _ in range(2)]
        length = {1: pick.choice([500, 4096, 16384]), 2: pick.choice([14, 64, 96]), 3: pick.choice([8, 24, 32])}[dims]
        arguments = {"in_channels": channels[0], "out_channels": channels[1], "kernel_size": kernel, "stride": stride,
                     "padding": padding, "bias": pick.random() < 0.5}
        shape = (pick.choice([1, 4, 8]), channels[0], *[length] * dims)
        found.append((dims, arguments, shape, pick.choice([torch.float32, torch.bfloat16])))
    return found


def test_40_layers_that_are_no_presets_are_never_slower() -> None:
    files = {dims: loaded(text_of(name)) for dims, name in FILES.items()}
    slower = []
    for dims, arguments, shape, dtype in drawn(40):
        ours = files[dims]["ModelNew"](**arguments).to(DEVICE, dtype)
        theirs = getattr(nn, f"ConvTranspose{dims}d")(**arguments).to(DEVICE, dtype)
        theirs.load_state_dict(ours.state_dict())
        x = torch.randn(shape, device=DEVICE).to(dtype)
        close(ours(x).float(), theirs(x).float(), 3e-3 if dtype == torch.float32 else 2e-2)
        a, b = measure_in_turns([both_ways_of(ours, x), both_ways_of(theirs, x)], device="cuda:0", effort="quick")
        ratio = median(a.samples) / median(b.samples)
        print(f"{ratio:.3f} {dims}-D {arguments} {shape} {dtype} {ours.kernels(x)}", flush=True)
        slower += [(ratio, arguments, shape, dtype)] if ratio > MOST else []
    assert not slower, slower


def test_graphs_compile_and_bits() -> None:
    namespace, layer = loaded(text_of("models/sam-1")), preset("models/sam-1").layer
    ours, theirs = modules(namespace, layer)
    x = torch.randn((2, layer.in_channels, 32, 32), device=DEVICE)
    with torch.no_grad():
        ours(x)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = ours(x)
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        close(y, theirs(x), 2e-3)
        assert torch.equal(y, ours(x))
    compiled = torch.compile(nn.Sequential(ours, nn.GELU()), fullgraph=True, dynamic=True)
    for size in (32, 40, 48):
        x = torch.randn((2, layer.in_channels, size, size), device=DEVICE, requires_grad=True)
        (mine,), (their,) = (torch.autograd.grad(m(x).square().sum(), x) for m in (compiled, nn.Sequential(theirs, nn.GELU())))
        close(mine, their, 5e-3)
    first, second = (torch.autograd.grad(ours(x).square().sum(), [x, *ours.parameters()]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_graph_that_is_recorded_first_is_pytorchs_and_nothing_is_built() -> None:
    namespace, layer = loaded(text_of("models/sam-2")), preset("models/sam-2").layer
    ours, theirs = modules(namespace, layer)
    x = torch.randn((2, layer.in_channels, 16, 16), device=DEVICE)
    with torch.no_grad():
        theirs(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ours(x)
        graph.replay()
        close(y, theirs(x), 1e-3)
        assert not any(kernel.launchers for kernel in namespace["_KERNELS"])
        ours(x)
        assert any(kernel.launchers for kernel in namespace["_KERNELS"])


def test_another_device_and_another_stream() -> None:
    namespace, layer = loaded(text_of("models/sam-1")), preset("models/sam-1").layer
    ours, theirs = modules(namespace, layer)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn((2, layer.in_channels, 32, 32), device=DEVICE)
        close(ours(x), theirs(x), 2e-3)
    stream.synchronize()
    require(torch.cuda.device_count() > 1, "one GPU only")
    ours, theirs, x = ours.to("cuda:1"), theirs.to("cuda:1"), x.to("cuda:1")
    assert torch.cuda.current_device() == 0
    close(ours(x), theirs(x), 2e-3)
