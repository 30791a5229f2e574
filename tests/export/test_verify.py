"""The exact exported text on the emulator, in a process of its own: it does what nn.ConvTranspose does, or is refused. Also
tools/kernelbench_eval.py, as far as it goes without a GPU and without a checkout of KernelBench."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import BACKWARD, DIRECTIONS, ConvTranspose, Workload
from workbench.core.presets import KERNELBENCH, PRESETS, preset
from workbench.core.variants import TEMPLATES, discover, find
from workbench.drive.checking.attacks import kernels
from workbench.drive.checking.check import workload_reference
from workbench.drive.exporting.best_recipe import best_recipe
from workbench.drive.exporting.export import Recipe, export_text, module_order, verify
from workbench.drive.running.runner import Runner
from workbench.drive.running.worker_process import WorkerProcess
from workbench.faces.cli import main
from workbench.measure.module.subject import Subject

from .recipes import SMALL, THREE_D, TWO_D, candidate, naive, run, run_fresh

ROOT = Path(__file__).resolve().parents[2]


def test_preset_74(folder: Path):
    preset = PRESETS["kb74"]
    workload = Workload(preset.layer, 2, 40)
    result = run_fresh(export_text(naive(workload), constructor=preset), workload, folder, preset=preset)
    assert result.status == "OK", result.headline
    assert set(result.errors) == {"output", "grad_input", "grad_weight"}
    assert result.precision == "ieee" and "emulated" in result.flags
    assert "other channels, groups and bias" in result.detail.checked


def test_a_constructor_argument_that_the_original_ignores(folder: Path, worker: WorkerProcess):
    preset = PRESETS["kb73"]
    workload = Workload(preset.layer, 1, (2, 3, 2))
    text = export_text(naive(workload, "forward", form="runtime"), constructor=preset)
    assert run(worker, text, workload, folder, preset=preset).status == "OK"


def test_a_free_2d_layer_with_another_variant_in_each_direction(folder: Path, worker: WorkerProcess):
    recipe = Recipe(TWO_D, forward=candidate(TWO_D, "forward", "shared_weight_tiling"),
                    grad_input=candidate(TWO_D, "grad_input", "warp_per_output", form="runtime"),
                    grad_weight=candidate(TWO_D, "grad_weight", "shared_weight_tiling", form="runtime"))
    result = run(worker, export_text(recipe), TWO_D, folder)
    assert result.status == "OK", result.headline
    assert set(result.errors) == {"output", "grad_input", "grad_weight", "grad_bias"}
    assert "a channels_last input" in result.detail.checked


def test_3d_in_float16_with_the_gradients_left_to_pytorch(folder: Path, worker: WorkerProcess):
    result = run(worker, export_text(naive(THREE_D, "forward")), THREE_D, folder)
    assert result.status == "OK", result.headline
    assert result.detail.left_to_pytorch == ("grad_input", "grad_weight")


@pytest.mark.parametrize(("direction", "right", "broken", "said"), [
    ("grad_weight", 'return getattr(torch, f"conv_transpose{len(settings[0])}d")(x, weight, bias, *settings)',
     'return 1.002 * getattr(torch, f"conv_transpose{len(settings[0])}d")(x, weight, bias, *settings)', "The error of y is"),
    ("forward", "_gradients_by_pytorch(grad_output, x, weight, ctx.plan.settings, wanted), None",
     "_gradients_by_pytorch(1.5 * grad_output, x, weight, ctx.plan.settings, wanted), None", "The second derivative differs")])
def test_what_is_left_to_pytorch_in_float16_must_be_right(folder: Path, worker: WorkerProcess, direction: str, right: str,
                                                          broken: str, said: str):
    text = export_text(naive(THREE_D, direction))
    assert right in text
    result = run(worker, text.replace(right, broken), THREE_D, folder)
    assert result.status == "MISMATCH" and said in result.headline, result.headline


def test_one_candidate_that_computes_both_gradients(folder: Path, tmp_path: Path, worker: WorkerProcess):
    both = _both_gradients(tmp_path / "templates")
    recipe = Recipe(SMALL, backward=both)
    assert list(recipe.chosen) == ["backward"]
    assert recipe == Recipe.from_json(recipe.to_json())
    result = run(worker, export_text(recipe), SMALL, folder)
    assert result.status == "OK", result.headline
    assert result.detail.left_to_pytorch == ("forward",)


# What is changed in a good file, and how the worker must refuse it.
BROKEN = {
    "CUDA that does not compile": (r"const int tile = ", "const int tile = = ", "BUILD_FAILED", "naive_gather.cu"),
    "a border that is not tested": (r"\|\| tw / layer.stride_w >= sizes.in_w", "|| tw / layer.stride_w > sizes.in_w",
                                    "MISMATCH", "For its own workload"),
    "a result that nobody writes": (r"if \(co0 \+ c < co_per_group\)\n", "if (co0 + c < co_per_group - 1)\n",
                                    "NON_FINITE", "of y"),
    "too many threads": (r"Tune::BLOCK, 0, stream>>>", "2048, 0, stream>>>", "LAUNCH_FAILED", "forward/naive_gather"),
    "Python that does not parse": (r"def _problem\(", "def def _problem(", "RENDER_FAILED", "SyntaxError"),
    "parameters drawn twice": (r"    def forward\(self, input, output_size=None\):",
                               "    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0,\n"
                               "                 output_padding=0, groups=1, bias=True, dilation=1):\n"
                               "        super().__init__(in_channels, out_channels, kernel_size, stride, padding,\n"
                               "                         output_padding, groups, bias, dilation)\n"
                               "        self.reset_parameters()\n\n"
                               "    def forward(self, input, output_size=None):", "MISMATCH", "Under the same seed"),
    "no gradient": (r"return _ConvTranspose.apply\(x, weight", "return _ConvTranspose.apply(x.detach(), weight",
                    "NO_GRADIENT", "grad_input"),
    "a wrong shape": (r"return _ConvTranspose.apply\((.*)\)\n", r"return _ConvTranspose.apply(\1)[..., 1:]\n",
                      "WRONG_SHAPE", "expected"),
    "a wrong dtype": (r"return _ConvTranspose.apply\((.*)\)\n", r"return _ConvTranspose.apply(\1).double()\n",
                      "WRONG_DTYPE", "torch.float64"),
    "a wrong device": (r"return _ConvTranspose.apply\((.*)\)\n", r"return _ConvTranspose.apply(\1).to('meta')\n",
                       "WRONG_DEVICE", "meta"),
    "an input that is changed": (r'launch = self.launch\("forward"\)\n',
                                 'launch = self.launch("forward")\n        x.data[0] += 1\n',
                                 "INPUT_MODIFIED", "of x"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_refused(what: str, folder: Path, worker: WorkerProcess):
    pattern, instead, status, words = BROKEN[what]
    text, count = re.subn(pattern, instead, export_text(naive(SMALL, "forward", "grad_input", form="runtime")))
    assert count, "the pattern no longer occurs in the file"
    result = run(worker, text, SMALL, folder)
    assert (result.status, words in result.headline) == (status, True), result
    assert result.advice


@pytest.mark.parametrize(("line", "limit_s", "status", "words"), [
    ("os.kill(os.getpid(), 11)", 120, "WORKER_DIED", "The process ended by signal 11 (SIGSEGV) while the kernel ran."),
    ("time.sleep(600)", 2, "RUN_TIMEOUT", "Still running after 2 s; the process was stopped.")])
def test_a_file_that_kills_or_hangs_its_process_is_refused(line: str, limit_s: int, status: str, words: str, folder: Path):
    text = export_text(naive(SMALL, "forward", form="runtime")) + f"\nimport os, time\n{line}\n"
    with Runner() as runner:
        result = verify(partial(runner.prove, limit_s=limit_s), module_order(text, SMALL, device="cpu", scratch=folder))
    assert (result.status, result.headline) == (status, words) and result.advice


def test_the_verb_says_so_in_one_sentence(monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setenv("KERNEL_WORKBENCH_TEMPLATES", str(kernels(tmp_path)))
    out = tmp_path / "model_new.py"
    assert main(["export", "--layer", str(SMALL.layer), "--input-size", "9", "--forward", "writes_to_null", "--verify",
                 "--device", "cpu", "--out", str(out)]) == 1
    assert "WORKER_DIED: The process ended by signal 11" in capsys.readouterr().err and not out.exists()


def test_a_name_that_the_original_does_not_have_is_refused(folder: Path, worker: WorkerProcess):
    preset = PRESETS["kb74"]
    workload = Workload(preset.layer, 1, 20)
    text = export_text(naive(workload, "forward", form="runtime"), constructor=preset)
    result = run(worker, text.replace(f"self.{preset.attribute}", "self.deconv"), workload, folder, preset=preset)
    assert result.status == "MISMATCH" and "state_dict" in result.headline, result


def _both_gradients(root: Path) -> Candidate:
    """A variant made of the two naive ones, one after the other, which share one workspace."""
    parts = {d: find("naive_gather", d, root=TEMPLATES) for d in ("grad_input", "grad_weight")}
    bodies = {d: v.text[v.text.index("*/") + 2:] for d, v in parts.items()}
    includes = "\n".join(dict.fromkeys(re.findall(r'^#include "[^"]+"', "\n".join(bodies.values()), re.M)))
    tune = {t.name: t for v in parts.values() for t in v.tune}
    head = "\n".join(f"{t.name} = {{values = {list(t.values)}, default = {t.default}}}" for t in tune.values())
    spaces = "\n".join(f"namespace both_{d} {{\n" + re.sub(r'^#include "[^"]+"', "", body, flags=re.M) + "\n}"
                       for d, body in bodies.items())
    (root / "backward").mkdir(parents=True)
    (root / "backward/both.cu").write_text(f"""/* variant
name = "both"
computes = ["grad_input", "grad_weight"]
idea = "Both gradients from one call."
precision = ["ieee"]
layer = ["constant", "runtime"]
[tune]
{head}
*/
{includes}
{spaces}
template <class Layer, class Tune>
long long backward_workspace(Layer layer, Sizes sizes) {{
  const long long a = both_grad_input::grad_input_workspace<Layer, Tune>(layer, sizes);
  const long long b = both_grad_weight::grad_weight_workspace<Layer, Tune>(layer, sizes);
  return a > b ? a : b;
}}
template <class Layer, class Tune>
cudaError_t backward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                     const typename Layer::scalar* weight, const typename Layer::scalar* grad_output,
                     typename Layer::scalar* grad_input_out, typename Layer::scalar* grad_weight_out,
                     typename Layer::scalar* grad_bias, void* workspace, cudaStream_t stream) {{
  const cudaError_t first = both_grad_input::grad_input<Layer, Tune>(layer, sizes, grad_output, weight,
                                                                     grad_input_out, workspace, stream);
  if (first != cudaSuccess) return first;
  return both_grad_weight::grad_weight<Layer, Tune>(layer, sizes, input, grad_output, grad_weight_out, grad_bias,
                                                    workspace, stream);
}}
""")
    return Candidate(find("both", "backward", root=root), SMALL.layer, "float32", {})


WORKLOADS = [Workload(ConvTranspose(2, 6, 4, (3, 2), stride=(2, 3), padding=(1, 0), groups=2), 2, (5, 6)),
             Workload(ConvTranspose(2, 16, 24, 3, padding=1), 1, (4, 16)),
             Workload(ConvTranspose(2, 5, 5, 3, stride=2, groups=5), 2, (4, 7)),
             Workload(ConvTranspose(2, 8, 16, 2, stride=2), 1, (3, 18)),
             Workload(ConvTranspose(2, 16, 24, (1, 3)), 1, (4, 16))]


def recipes() -> list[Recipe]:
    """As few as hold every variant once: up to one of each direction, on the first layer that they serve, in one precision."""
    waiting: dict[tuple[Workload, str], dict[str, list[Candidate]]] = {}
    for variant in discover(TEMPLATES):
        works = [replace(w, dtype=variant.dtypes[0]) for w in WORKLOADS]
        work, one = next((w, c) for w, c in ((w, Candidate(variant, w.layer, w.dtype, {})) for w in works)
                         if why_not(c, sm=EMULATED_SM) is None)
        waiting.setdefault((work, one.precision), {}).setdefault(variant.direction, []).append(one)
    found = []
    for (work, _), by_direction in waiting.items():
        both = by_direction.pop(BACKWARD, [])
        found += [Recipe(work, backward=one) for one in both]
        for turn in range(max(map(len, by_direction.values()), default=0)):
            found.append(Recipe(work, **{d: c[turn] for d, c in by_direction.items() if turn < len(c)}))
    return found


def channels_last() -> Recipe:
    """Kernels that take activations in that format, whatever the caller's is."""
    work = Workload(ConvTranspose(2, 16, 24, 3, padding=1), 1, (4, 16), "bfloat16", "channels_last")
    return Recipe(work, **{d: candidate(work, d, "persistent_packed", CHANNELS_LAST=1) for d in DIRECTIONS})


RECIPES = recipes()
# The host's part of a file is one for all variants: `make test` asks one without tensor cores, one with, the one that computes
# both gradients, and those that take channels_last alone; `make test-long` the rest.
SOON = {"register_blocked", "implicit_gemm_mma", "fused_mma", "channels_last_wgmma"}


def _layouts() -> list:
    return [channels_last(), *(pytest.param(recipe, marks=() if SOON & {c.variant.name for c in recipe.chosen.values()} else
                                            pytest.mark.long) for recipe in RECIPES)]


def _id(recipe: Recipe) -> str:
    return "+".join(f"{d}.{c.variant.name}" for d in (*DIRECTIONS, BACKWARD) if (c := getattr(recipe, d)))


def test_each_variant_is_among_them() -> None:
    inside = [c.variant.key for r in RECIPES for d in (*DIRECTIONS, BACKWARD) if (c := getattr(r, d))]
    assert sorted(inside) == sorted(v.key for v in discover(TEMPLATES))


@pytest.mark.parametrize("recipe", _layouts(), ids=_id)
def test_it_takes_any_layout(recipe: Recipe, folder: Path, worker: WorkerProcess) -> None:
    result = run(worker, export_text(recipe), recipe.workload, folder)
    assert result.status == "OK", result.headline
    assert "The emulator ran the templates; the file holds the parts of them that a GPU runs." in result.headline
    assert {"a non-contiguous input", "a channels_last input"} <= set(result.detail.checked)


def tool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "tools/kernelbench_eval.py"), *words], capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The layout of one, with a static check that looks for one word, and one problem."""
    (tmp_path / "src/kernelbench").mkdir(parents=True)
    (tmp_path / "KernelBench/level1").mkdir(parents=True)
    (tmp_path / "src/kernelbench/eval.py").write_text("")
    (tmp_path / "src/kernelbench/kernel_static_checker.py").write_text(
        "def validate_kernel_static(code, backend, precision):\n"
        "    bad = ['no kernel'] if 'candidate' not in code or '__global__' not in code else []\n"
        "    return not bad, bad, []\n")
    (tmp_path / "KernelBench/level1/74_conv.py").write_text("")
    return tmp_path


def test_a_bad_request_is_one_sentence(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for words, sentence in (((str(tmp_path_factory.mktemp("empty")),), "is no checkout of KernelBench"),
                            ((str(checkout), "--only", "kb1"), "There is no preset 'kb1'"),
                            ((str(checkout), "--only", "kb81"), "has 0 files for problem 81")):
        done = tool(*words)
        assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_it_exports_and_asks_and_says_who_disagrees(checkout: Path) -> None:
    out = checkout / "said.json"
    done = tool(str(checkout), "--only", "kb74", "--static", "--arch", "sm_90", "--out", str(out))
    assert done.returncode == 0 and "kb74  AGREES   static check ok" in done.stdout, done.stdout + done.stderr
    assert '"valid": true' in out.read_text()
    (checkout / "src/kernelbench/kernel_static_checker.py").write_text(
        "def validate_kernel_static(code, backend, precision):\n    return False, ['a word it does not like'], []\n")
    done = tool(str(checkout), "--only", "kb74", "--static", "--arch", "sm_90")
    assert done.returncode == 1 and "kb74  DIFFERS  static check: a word it does not like" in done.stdout
    assert "0 of 1 agree" in done.stdout


@pytest.mark.parametrize("name", ["kb64", "kb71", "kb77"])
def test_the_protocol_of_kernelbench_on_the_emulator(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its evaluation goes: the text is executed behind a line of its own, both models are drawn under one seed, without
    gradients, 5 trials with new inputs each, float32 within 1e-4. Small inputs; the forward that is best known in ieee."""
    workload = preset(name).workload("small")
    recipe, _ = best_recipe(preset(name).workload(), "sm_90", precision="ieee")
    text = export_text(Recipe(workload, forward=recipe.forward), constructor=KERNELBENCH[name])
    problem, answer = {"__name__": "problem"}, {"__name__": "answer"}
    exec(compile(workload_reference(workload)[0], "problem", "exec"), problem)
    exec(compile("import os\nos.environ['TORCH_EXTENSIONS_DIR'] = '/none'\n" + text, "answer", "exec"), answer)
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")      # what the line above set
    subject = Subject(module_order(text, workload, device="cpu", scratch=folder, preset=KERNELBENCH[name]))
    answer.update(_DEVICE_TYPE="cpu", _build=subject._build_for_host)
    launched: list[str] = []
    call = answer["_Launch"].__call__
    monkeypatch.setattr(answer["_Launch"], "__call__",
                        lambda launch, *t: launched.append(launch.kernel.direction) or call(launch, *t))
    torch.manual_seed(42)
    arguments = problem["get_init_inputs"]()
    with torch.no_grad():
        models = []
        for cls in (problem["Model"], answer["ModelNew"]):
            torch.manual_seed(42)
            models.append(cls(*arguments))
        torch.manual_seed(42)
        for seed in torch.randint(0, 2**31, (5,)).tolist():
            results = []
            for model in models:
                torch.manual_seed(seed)
                results.append(model.to(dtype=torch.float32)(*(x.float() for x in problem["get_inputs"]())))
            assert results[0].shape == results[1].shape
            assert torch.allclose(*results, atol=1e-4, rtol=1e-4), (results[0] - results[1]).abs().max()
    assert launched == ["forward"] * 5
