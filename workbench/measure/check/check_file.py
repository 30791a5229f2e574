"""One check: the texts of a foreign file and of its reference come in, questions with answers go out.

Nothing foreign runs in this process. It chooses arguments, sizes and values, compares what comes back with float64,
and takes the time.
"""

from __future__ import annotations

import ast
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

import torch

from ...core.answers import Answer, Question
from ...core.check_parts import KernelBench
from ...core.confinement import Confinement
from ...core.errors import BadRequest
from ...core.orders import CheckOrder, Emit
from ...core.precision import DECLARED, declared, less_exact
from ...core.replies import Checked, Event
from ...core.toolchain import find_toolchain
from ...core.trial import Status
from ..build.build import missing
from ..device import free_bytes
from .begin import OF_TIMES, Begun
from .clock.contestant import Ahead, Beside
from .clock.ladder import LADDER, why_left_out
from .examine import Examination
from .foreign import confine, requests
from .foreign.process import Ended, ForeignProcess, Limits, Raised, kill_orphans
from .foreign.replies import InlineCall, Loaded, Made, Structure
from .host.module import INTERFACE
from .party import Construction, Party, by_name, unlike
from .progress import Progress
from .questions import apart
from .questions.cases import Case, Setting, changed, few_channels, positional, setting_of
from .questions.drawn import Drawn, left_out
from .text import cuda_sources, reached
from .text.build_question import build_question, no_compiler
from .text.cuda_sources import Nvcc
from .trialrun import TrialRun, new_seed

_MANY_VALUES = 1 << 22    # bytes of x and the output; fewer are sent fast enough through the pipe
# Bytes for each value: of a window, and of all other tensors in all processes. The larger window has all tensors that are sent
# before timed calls, the smaller one the truth. Measured on an H200, the questions take 69 bytes besides the windows, and the
# times take more. `_OPEN`: how many windows are open at a time.
_WINDOWS, _WINDOW_MORE, _OPEN = ((16, 112), (8, 80)), 64 << 20, 3
_SEED_OF_FORMS, _INPUT = 48, "input"   # the name of the first argument of forward of PyTorch's layers
_OF_DIMENSIONS = ("kernel_size", "stride", "padding", "output_padding", "dilation")
_RESETS, _BY_NAME = "reset_parameters()", "With all arguments by name"
_LISTS, _THAT_CHANGE = "With lists instead of tuples", "lists"   # see `host.module.in_form`
_NO_ITERATOR = "{0}() returns no iterator: next(module.{0}()) raises an exception."
_NO_STATE = "Do not override state_dict or its parts."
_OF_LAYER = (":bias", ":class", ":flat")   # asked of a file that stands for nn.ConvTranspose
_OF_INTERFACE = {   # see `host.module.interface`
    ":bias": ("Without a bias it has no attribute bias. PyTorch's layer has None there.", "Register bias as None."),
    ":class": ("It is no instance of PyTorch's layer: spectral_norm then normalises another matrix.",
               "Derive ModelNew from the layer's class."),
    ":arguments": ("Its constructor changes a list that it is given.", "Copy the list before you change it."),
    ":copy": ("A deep copy of it has other frozen parameters, or draws random numbers.", "Do not override __deepcopy__."),
    ":repr": ("print(module) raises {0}.", "Correct extra_repr or __repr__, or set the attributes that they read."),
    ":flat": ("A parameter of it is not contiguous: torch.nn.utils.parameters_to_vector raises an exception.",
              "Keep parameters contiguous, and change their layout in the call."),
    ":subclass": ("A subclass that changes nothing raises {0} when it is constructed.",
                  "Write super().__init__(), not super(self.__class__, self), and do not compare type(self)."),
    ":subclass_state": ("A subclass that changes nothing has other parameters under the same seed.",
                        "Do not compare type(self)."),
    ":vars": ("state_dict(keep_vars=True) does not give its parameters, but copies or tensors without a gradient.", _NO_STATE),
    ":plain": ("state_dict() gives tensors that require a gradient.", _NO_STATE),
    ":assign": ("load_state_dict(assign=True) does not replace its tensors by the given ones.", _NO_STATE),
    ":into": ("state_dict(destination=..., prefix=...) does not fill that dictionary with names behind the prefix.", _NO_STATE),
    ":hooks": ("It does not run hooks that are registered for all modules.", "Do not override __call__."),
    **{f":{name}": (_NO_ITERATOR.format(name), f"Do not override {name}.")
       for name in ("parameters", "named_parameters", "buffers", "modules", "children")}}


def check(order: CheckOrder, emit: Emit, begun: Begun) -> Checked:
    """The answers, with all that is found beside them."""
    confined, scratch = confine.confinement(order.device), begun.scratch
    if order.device != "cpu":  # creating a CUDA context takes seconds; the other processes create theirs at the same time
        threading.Thread(target=free_bytes, args=(order.device,), daemon=True).start()
    limits = Limits(order.memory_bytes, order.call_s, order.build_s)
    patient = replace(limits, call_s=max(120.0, limits.call_s))  # the limit is meant for the candidate
    reference = ForeignProcess("reference", device=order.device, limits=patient, scratch=scratch,
                               launched=begun.launched.get("reference"))
    candidate = ForeignProcess("candidate", device=order.device, limits=limits, scratch=scratch, beside=reference,
                               launched=begun.launched.get("candidate"))
    others = {name: ForeignProcess(name, device=order.device, limits=patient, scratch=scratch,
                                   launched=begun.launched.get(name)) for name in OF_TIMES}
    asked = _Check(order, emit, scratch, candidate, reference, others, confined)
    try:
        reference.begin()
        candidate.begin()
        asked.run()
    except BadRequest:
        raise
    except Exception as error:  # an answer that breaks the judge is a failure of the file
        traceback.print_exc()
        asked.stopped_by(error)
    finally:
        if asked.ahead:
            asked.ahead.stop()
        candidate.close()
        for process in (reference, *others.values()):
            process.close()
        left = kill_orphans()
        confine.remove_leftovers(order.device)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the processes of the next check need that memory
    if left:
        asked.questions.append(Question(
            "processes", "Leaves nothing running?", Answer.WARNED, f"No. {left} processes of the file had left their process "
                                                                   "group; they were killed.", "Do not start processes."))
    return asked.progress.so_far


@dataclass(frozen=True)
class _Reference:
    """`structure`: the layer, if the reference is exactly one transposed convolution. `numbers`: see `requests.Make`."""

    loaded: Loaded
    convolves: bool
    structure: Structure | None
    numbers: str


@dataclass(frozen=True)
class _Compiling:
    """nvcc in a thread. `result` is empty until it has ended. `enough`: set to stop it."""

    thread: threading.Thread
    result: list[Nvcc]
    enough: threading.Event


class _Check:
    """One check, from importing to timing."""

    def __init__(self, order: CheckOrder, emit: Emit, scratch: Path, candidate: ForeignProcess,
                 reference: ForeignProcess, others: dict[str, ForeignProcess], confined: Confinement) -> None:
        self.order, self.scratch = order, scratch
        self.device, self.text = order.device, order.text
        self.emulate = self.device == "cpu"
        self.seed = order.seed or new_seed()
        self.progress = Progress(emit, Checked((), confined, self.seed), (reference, candidate, *others.values()))
        self.questions, self.emit = self.progress.questions, self.progress.emit
        self.candidate = Party(candidate, self.text, class_name=order.class_name, emulate=self.emulate,
                               cache=str(scratch / "candidate" / "cache"), record=True)
        self.reference = Party(reference, order.reference, class_name="Model", emulate=False)
        self.others = others
        self.ahead: Ahead | None = None

    def run(self) -> None:
        """Everything. What is found becomes part of `progress`."""
        self.emit(Event("build", "importing both files"))
        with ThreadPoolExecutor(1) as pool:  # the reference draws its inputs while the file is imported and built
            asked = pool.submit(self._reference)
            built, calls, own_export = self._build()
            if built.answer is Answer.FAILED:
                asked.result()  # if the reference is defective, too, this raises its error
            emulated = self.emulate and (any(c.cuda_sources for c in calls) or own_export)
            self.progress.known = replace(self.progress.known, emulated=emulated)
            self.questions.append(built)
            compiler = self._start_nvcc(calls)
            reference, given, setting = asked.result()
        case = Case("the given size", setting, tuple(tuple(x.shape) for x in given),
                    tuple(str(x.dtype).removeprefix("torch.") for x in given))
        home = self._share(case)
        given = [x.to(home) for x in given]
        trial = TrialRun(self.reference, self.candidate, device=self.device, seed=self.seed, home=home,
                         dtype=next((str(x.dtype).removeprefix("torch.") for x in given if x.is_floating_point()), "float32"))
        trial.given, trial.parameters = given, list(reference.loaded.parameters)
        trial.defaults, trial.numbers = reference.loaded.defaults, reference.numbers
        trial.words = reached.words(self.order.reference)
        beside = self._beside(trial, case)
        if built.answer is Answer.PASSED:
            if setting.layer is None:
                trial.drawn = self._drawn(given, trial)
                self.questions += trial.drawn.warnings()
            trial.takes_size = reference.loaded.takes_size and self.candidate.load().takes_size
            inputs = len(given) + len(ast.literal_eval(reference.numbers))
            options = reference.loaded.not_given(inputs)
            self._options(options, inputs, of_pytorch=bool(reference.structure) and not reference.structure.attribute)
            left = tuple(n for n in options if n != "output_size")
            left += ("output_size",) * (reference.loaded.takes_size and not trial.takes_size)
            self.progress.known = replace(self.progress.known, options=left)
            trial.convolves = reference.convolves
            if not trial.convolves:
                trial.of_float32 = "ieee"
            less = self._declared(trial)
            trial.attribute = reference.structure.attribute if reference.structure else ""
            self.progress.known = replace(self.progress.known, declared=less)
            Examination(trial, case, self.progress, emulated=emulated, timed=self.order.time, effort=self.order.effort,
                        beside=beside).run()
            if trial.candidate.drawn and not trial.candidate.given_up:
                self.questions += [*_interface(trial, case), *_forms(trial, case)]
            right = any(q.key == "values" and q.answer is Answer.PASSED for q in self.questions)
            if trial.drawn and right and not trial.candidate.given_up:
                self.candidate.note_what_ran()   # the last of these calls may end the process
                self.questions += apart.of_other_inputs(trial, case)
            answers = {q.key: q.answer for q in self.questions}
            if Answer.FAILED not in answers.values() and answers.get("values") is Answer.PASSED:
                self.candidate.note_what_ran()
                self.questions += reached.ask(self.text, self.order.class_name, calls, self.candidate.ran, device=self.device)
        else:
            self.questions += [Question(key, text, Answer.SKIPPED, "Not asked: the file does not build.") for key, text in
                               (("values", "Right values at the given size?"), ("gradients", "Has gradients?"))]
        self._static(calls, compiler)
        text = tuple(cuda_sources.kernelbench_text(self.text))
        found = self.progress.known
        self.progress.known = replace(found, kernelbench=replace(found.kernelbench or KernelBench(()), text=text))

    def _share(self, case: Case) -> str:
        """The device of the judge's tensors. Those of a large layer stay on the GPU and are passed to and from the processes
        through shared GPU memory, if there is enough. Other tensors are few or small, or need operations that only the CPU has.
        """
        if self.device == "cpu" or case.workload is None:
            return "cpu"
        values = prod(case.shapes[0]) + prod(case.workload.output_shape)
        free = free_bytes(self.device)
        window = next((size for size, more in _WINDOWS if values * (_OPEN * size + more) <= free), 0)
        if values < _MANY_VALUES or not window:
            return "cpu"
        for process in (self.reference.process, self.candidate.process, self.others["compiler"]):
            process.share(self.device, window * values + _WINDOW_MORE)
        for name in ("benchmark", "spare"):  # that of torch.compile follows when it has ended (`Beside.wait`)
            self.others[name].share_with(self.reference.process)
        return self.device

    def _beside(self, trial: TrialRun, case: Case) -> Beside | None:
        """The other processes of the timing. torch.compile begins at once, while the file is built and questions are asked. On
        the CPU this is done only if its process was started, because an emulated file is not timed."""
        if not self.order.time or self.emulate and not self.others["compiler"].alive:
            return None
        benchmark, compiler = (Party(self.others[name], self.order.reference, class_name="Model", emulate=False)
                               for name in ("benchmark", "compiler"))
        ways = [key for key, way in LADDER.items() if way.kind == "compiled" and not why_left_out(
            key, case, device=self.device, dtype=trial.dtype, effort=self.order.effort)]
        if ways:
            self.ahead = Ahead(compiler, trial.how(case), ways, trial.given)
        return Beside(None if self.emulate else benchmark, self.ahead, self.others["spare"])

    def stopped_by(self, error: Exception) -> None:
        """Adds the question that failed because the judge itself raised an error."""
        said = (str(error).strip().splitlines() or ["no more answers are known"])[0][:200]
        self.questions.append(Question(
            "judge", "Did the judge run to the end?", Answer.FAILED, f"No. It stopped at an unexpected reply: "
            f"{type(error).__name__}: {said}.", "Report this, with the file.", str(Status.WORKER_DIED)))

    def _reference(self) -> tuple[_Reference, list[torch.Tensor], Setting]:
        """Facts about the reference. If it is defective, it ends the candidate's process and raises `BadRequest`, because
        nothing can be judged against it."""
        try:
            return self._of_reference()
        except BadRequest:
            self.candidate.process.kill()
            raise

    def _of_reference(self) -> tuple[_Reference, list[torch.Tensor], Setting]:
        try:
            loaded = self.reference.load()
            answer, given = self.reference.process.ask(requests.Give(self.seed % 2**31))
            setting_of(loaded.parameters, answer.arguments, answer.keywords, None)  # raises before they are sent back
            made, _ = self.reference.process.ask(requests.Make("first", answer.arguments, answer.keywords, 1, "float64",
                                                                   answer.numbers))
        except Raised as error:
            raise BadRequest(f"The reference does not run: {error.sentence}. It has to define Model, get_inputs and "
                             "get_init_inputs.") from error
        except Ended as error:
            raise BadRequest(f"The reference does not run: {error.headline}") from error
        bytes_needed = 8 * 6 * sum(x.numel() for x in given)
        if bytes_needed > free_bytes(self.device):
            raise BadRequest(f"The reference's inputs are too large for {self.device}; choose a smaller size.")
        structure = self._layer(made.structure, given)
        setting = setting_of(loaded.parameters, answer.arguments, answer.keywords, structure)
        return _Reference(loaded, made.convolves, structure, answer.numbers), given, setting

    def _declared(self, trial: TrialRun) -> str:
        """Set the precision that the file declares as the one in which it is judged. Returns its name if the reference is more
        exact."""
        precision, unknown = declared(self.text)
        key, question = "precision", "As exact as the reference?"
        if unknown:
            self.questions.append(Question(key, question, Answer.WARNED, f"Not known. The file declares {unknown!r}, which is "
                                           "no precision; the declaration is ignored.",
                                           f"Declare one of {', '.join(DECLARED.values())}."))
        if unknown or not precision or trial.dtype != "float32":
            return ""
        usual, name = trial.of_float32, DECLARED[precision]
        trial.declared = trial.of_float32 = precision
        tolerance = f"it is judged by the tolerance of {name}"
        if not less_exact(precision, usual):
            self.questions.append(Question(key, question, Answer.PASSED, f"Yes. It declares {name}; {tolerance}."))
            return ""
        self.questions.append(Question(key, question, Answer.WARNED, f"No. It declares {name}; {tolerance}. The reference "
                                       f"computes in {DECLARED[usual]} on this device.",
                                       "Compute in float32 if you need its accuracy: an export has --precision ieee for that."))
        return name

    def _options(self, options: tuple[str, ...], inputs: int, *, of_pytorch: bool) -> None:
        """Warn of options of the reference's forward that get_inputs() does not give and the file's forward does not have. No
        calls with these options are made. A note on other names of the inputs; the first one has any name. Of a file that
        stands for nn.ConvTranspose that one counts, too, if the reference's forward is that of PyTorch (`of_pytorch`)."""
        ours, theirs = self.candidate.load(), self.reference.load()
        pairs = [(a, b) for a, b in list(zip(theirs.forward, ours.forward, strict=False))[1:inputs] if a != b]
        if of_pytorch and ours.as_layer and not theirs.forward and ours.forward[:1] not in ((), (_INPUT,)):
            pairs.insert(0, (_INPUT, ours.forward[0]))
        if pairs:
            self.questions.append(Question(
                "names", "Names the arguments of forward alike?", Answer.NOTE,
                f"No. {' '.join(f'The argument {a} of the reference is {b:.60} in the file.' for a, b in pairs)} A call by "
                "name raises an exception, or gives another argument."))
        if lacks := [n for n in options if n not in ours.options and not (n == "output_size" and ours.takes_size)]:
            self.questions.append(Question(
                "options", "Takes the options of forward?", Answer.WARNED, "No. Its forward lacks the option "
                                                                           f"{', '.join(lacks)} of the reference's "
                                                                           "forward.", "Add the option, if other code uses "
                                                                                       "it.", str(Status.MISMATCH)))

    def _drawn(self, given: list[torch.Tensor], trial: TrialRun) -> Drawn:
        try:
            return Drawn(given, self.reference.draw, trial.generator)
        except (Raised, Ended) as error:
            said = error.sentence if isinstance(error, Raised) else error.headline
            raise BadRequest(f"get_inputs() of the reference does not run a second time: {said}.") from error

    def _layer(self, found: Structure | None, given: list[torch.Tensor]) -> Structure | None:
        """The layer, if the reference is exactly one transposed convolution; for a module that contains more it is None."""
        if found is None:
            return None
        try:
            few = [x[:2] if x.dim() == found.layer.dims + 2 else x for x in given]
            same, _ = self.reference.process.ask(requests.AskLayer("first", found), few)
        except (Raised, Ended):  # the check reports it when it calls the file
            return None
        return found if same.answer else None

    def _build(self) -> tuple[Question, tuple[InlineCall, ...], bool]:
        """The question, the file's calls of load_inline, and whether it was exported by this project."""
        try:
            loaded = self.candidate.load()
        except (Raised, Ended) as error:
            calls = error.detail.calls if isinstance(error, Raised) else ()
            question = build_question(error, self.text, printed=self.candidate.process.build_log(), emulated=self.emulate,
                                      lacks=self._lacks())
            return question, calls, False
        if loaded.own_export and (lacks := self._lacks()):  # it would build when it is called
            return no_compiler(lacks), loaded.calls, True
        how = ""
        if any(c.cuda_sources for c in loaded.calls) and self.emulate:
            how = ", for the CPU emulator"
        return (Question("builds", "Imports and builds?", Answer.PASSED, f"Yes, in {loaded.seconds:.1f} s{how}."), loaded.calls,
                loaded.own_export)

    def _lacks(self) -> str:
        """A sentence about a compiler that is missing on this machine; "" if none is."""
        return missing(find_toolchain(torch.version.cuda), cuda=not self.emulate) or ""

    def _start_nvcc(self, calls: Sequence[InlineCall]) -> _Compiling | None:
        """Start nvcc, on a machine without a GPU. It compiles the source while the questions are asked."""
        if self.questions[0].answer is Answer.FAILED and not self.questions[0].detail.first_error:
            return None
        if not (self.emulate and self.order.nvcc and any(c.cuda_sources for c in calls)):
            return None
        result, enough = list[Nvcc](), threading.Event()
        thread = threading.Thread(target=lambda: result.append(cuda_sources.nvcc(
            calls, self.text, self.scratch / "nvcc", memory_bytes=self.order.memory_bytes,
            limit_s=self.order.build_s, enough=enough)))
        thread.start()
        return _Compiling(thread, result, enough)

    def _static(self, calls: Sequence[InlineCall], compiler: _Compiling | None) -> None:
        if compiler is not None:
            values_wrong = any((q.key, q.answer) == ("values", Answer.FAILED) for q in self.questions)
            most = cuda_sources.WAIT_IF_WRONG_S if values_wrong else cuda_sources.MOST_WAIT_S
            self.emit(Event("build", f"waiting for nvcc, {most:g} s at most (not with --no-nvcc)"))
            compiler.thread.join(most)
            compiler.enough.set()
            compiler.thread.join()
            result = compiler.result[0] if compiler.result else Nvcc(Answer.SKIPPED, "nvcc could not run.")
            self.questions.append(Question("nvcc", "Compiles with nvcc?", result.answer, result.seen, result.advice,
                                           str(Status.BUILD_FAILED) if result.answer is Answer.FAILED else ""))
            first = self.questions[0]
            if result.answer is Answer.PASSED and first.detail.first_error:  # a limit of the emulator, not an error of the file
                self.questions[0] = replace(first, answer=Answer.SKIPPED, status=str(Status.SKIPPED), advice="Check the "
                                            "file on a machine with a GPU.", seen="Not known: nvcc compiles it, the CPU "
                                            f"emulator does not. {first.seen.removeprefix('No. ')}")
        asked = {q.key for q in self.questions if q.answer is not Answer.SKIPPED}
        hints = [*(cuda_sources.findings(self.text, calls) if calls else ()), *cuda_sources.of_python(self.text)]
        if hints := [h for h in hints if h.about not in asked]:
            wrong = str(Status.MISMATCH) * any(h.about == cuda_sources.KEYS for h in hints)
            self.questions.append(Question("text", "Suspicious code?", Answer.WARNED, " ".join(h.seen for h in hints),
                                           " ".join(h.advice for h in hints), wrong))
        if self.emulate and any(c.cuda_sources for c in calls):
            for key, text in (("stream", "Runs on the current stream?"), ("memory", "Memory against PyTorch's?"),
                              ("compile", "torch.compile, CUDA graph?")):
                self.questions.append(Question(key, text, Answer.SKIPPED, "Needs a GPU."))


def _interface(trial: TrialRun, case: Case) -> list[Question]:
    """A warning if the file's module lacks what other code may use of the reference. A layer is made without a bias."""
    ours, theirs = trial.candidate.facts, trial.reference.facts
    if ours is None or theirs is None:
        return []
    without = changed(case, {"bias": False}) if theirs.as_layer and case.setting.layer is not None else None
    how = replace(trial.how(without or case), form=INTERFACE)
    lacks, other = [], list[tuple[str, str]]()
    if theirs.takes_size and ours.as_layer and not ours.takes_size and "output_size" not in theirs.options:
        lacks.append(("Its forward does not take output_size. That of PyTorch's layer does.", "Add output_size to forward."))
    with suppress(Raised, Ended):
        there, has = trial.reference.make(how)[0].has, trial.candidate.make(how)[0].has
        own = {n.removesuffix("()") for n in has}
        for name in there:
            if name.endswith("()") and name[:-2] not in own and (name != _RESETS or ours.as_layer >= theirs.as_layer):
                lacks.append((f"It has no method {name}. The reference has one.", f"Add {name}."))
            elif name in _OF_INTERFACE and name not in has and (name not in _OF_LAYER or ours.as_layer):
                raised = next((n.removeprefix(f"{name} ") for n in has if n.startswith(f"{name} ")), "")
                said, advice = _OF_INTERFACE[name]
                lacks.append((said.format(raised if raised.isidentifier() else "an exception"), advice))
            elif name.startswith(":trains ") and name.replace(":trains", ":modes") not in has:
                kind = name.split()[1]
                lacks.append((f"None of its modules is an nn.{kind}, but one of the reference's is. Code that switches it "
                              "alone to train mode, as Monte Carlo dropout does, changes nothing.",
                              f"Make the nn.{kind} of the reference, and read its p and its mode in each call."))
        layers, own_layers = ({one.split(" ")[1]: one.split(" ")[2:] for one in those if one.startswith(":layer ")}
                              for those in (there, has))
        other = [(name, of[0]) for name, of in layers.items() if of and name in own_layers and not {*of} & {*own_layers[name]}]
    note = Question("layers", "Has the layers of the reference?", Answer.NOTE, "Not as objects of PyTorch's classes: "
                    f"{', '.join(f'{name} is no nn.{kind}' for name, kind in other[:4])}. Code that looks for layers by their "
                    "class, as model.apply(init) may do, does not find them.")
    return [*([_warning("interface", "Has the interface of the reference?", lacks)] if lacks else []), *[note][:len(other)]]


def _forms(trial: TrialRun, case: Case) -> list[Question]:
    """A warning if a file ignores torch's default dtype, or if one that stands for nn.ConvTranspose does not take its arguments
    by name, as lists or as NumPy's whole numbers, or ignores a dtype. Of other files KernelBench gives all arguments, by
    position. If the reference is no layer, those are asked for their names and default values, too."""
    ours, theirs = trial.candidate.facts, trial.reference.facts
    if not (ours and theirs) or case.setting.arguments:
        return []
    of_layer = ours.as_layer and theirs.as_layer and case.setting.layer is not None
    few = (few_channels(case) or case) if of_layer else case
    small = few.setting
    lists = replace(small, keywords=tuple((n, list(getattr(small.layer, n)) if of_layer and n in _OF_DIMENSIONS else v)
                                          for n, v in small.keywords))
    own = ours.parameters
    said, one, other = [], [n for n in trial.parameters if n in own], [n for n in own if n in trial.parameters]
    if of_layer and one != other:
        said.append((f"The order of its arguments is {', '.join(other)}. That of PyTorch's layer is {', '.join(one)}.",
                     "Take the arguments in the order of nn.ConvTranspose."))
    for words, setting, form, advice in (
            (_BY_NAME, small, "", f"Name the constructor's arguments as {'nn.ConvTranspose' if of_layer else 'Model'} does."),
            *((f"Without {one.name}", one.setting, "", "Give the arguments default values, as Model does.")
              for one in left_out(trial, case)),
            (_LISTS, lists, _THAT_CHANGE * of_layer, "Take a list as a tuple."),
            ("With whole numbers of NumPy", small, "numpy", "Do not test for int: a whole number of NumPy is none."),
            ("With dtype=torch.float64", small, "dtype", "Pass dtype and device on to the layer, or do not accept them."),
            ("Where torch's default dtype is float64", small, "float64", "Leave dtype None, which stands for the default.")):
        if not of_layer and form != "float64" and (form or case.setting.layer or setting is lists or not trial.loads_state):
            continue
        given = setting if words == _BY_NAME else positional(setting, trial.parameters, trial.defaults)
        how = Construction(*given.texts, seed=_SEED_OF_FORMS, form=form)
        with suppress(Raised, Ended):   # of the reference
            facts, values = trial.reference.make(how)
            call = partial(Party.call, how=how, inputs=trial.inputs(few), state=(facts.names, values), no_grad=True)
            usual = call(trial.reference)[1] if form == _THAT_CHANGE else []
            try:
                if wrong := _other_state(facts.names, values, *trial.candidate.make(how)):
                    said.append((f"{words} {wrong}", advice))
                elif usual and not _alike(usual[0], call(trial.candidate)[1]):
                    said.append((f"{words}, whose numbers change afterwards, its output is another one.", "Copy a list."))
            except Raised as error:
                if form != "dtype":   # a file that refuses it hides nothing
                    said.append((f"{words} it raises {error.sentence}.", advice))
    return [_warning("forms", "Takes arguments in other forms?", said)] if said else []


def _alike(usual: torch.Tensor, got: list[torch.Tensor]) -> bool:
    return bool(got) and got[0].shape == usual.shape and torch.allclose(got[0].double(), usual.double(), 1e-2, 1e-2)


def _other_state(names: Sequence[str], values: list[torch.Tensor], ours: Made, own: list[torch.Tensor]) -> str:
    if wrong := unlike(names, values, ours.names, own):
        return f"it has another state. {wrong}"
    return next((f"its {n} is {str(b.dtype).removeprefix('torch.')}, the reference's is {str(a.dtype).removeprefix('torch.')}."
                 for n, a, b in zip(names, values, by_name(names, ours.names, own), strict=True) if a.dtype != b.dtype), "")


def _warning(key: str, asked: str, said: list[tuple[str, str]]) -> Question:
    """`said`: what is wrong, and what to do."""
    return Question(key, asked, Answer.WARNED, f"No. {' '.join(one for one, _ in said)}",
                    " ".join(dict.fromkeys(advice for _, advice in said)), str(Status.MISMATCH))
