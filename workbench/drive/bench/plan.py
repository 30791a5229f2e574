"""What a bench runs: the candidates of every layer, from presets, directions and a precision class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ...core.best_known import best_config, load, ranked
from ...core.candidate import EMULATED_SM, Candidate
from ...core.errors import BadRequest, or_nearest
from ...core.layer import CONTIGUOUS, DIRECTIONS, LAUNCHES, Workload
from ...core.precision import CLASSES, CLASSES_OF
from ...core.presets import KERNELBENCH, SIZES, SUITES, preset
from ...core.space import SearchSpace
from ...core.variants import Variant, discover, refuse_broken
from ..exporting.best_recipe import best_recipe
from ..running.request import DEFAULTS, STRONG, check_judging

# Class -> groups of precisions. A variant is run in the precisions of the first group that it offers any of; in the class ieee
# that can be two.
_OFFERED = {"tf32": (("tf32",), ("ieee",)), "ieee": (("tf32x3", "ieee"),), "fp16": (("fp16",),), "bf16": (("bf16",),)}
CONFIGS = ("default", "known", "best", "sweep", "top")

_MOST_PER_JOB = 12


@dataclass(frozen=True)
class Job:
    """Candidates of one workload that are judged in one run. PyTorch is measured in the directions that at least one candidate
    computes."""

    workload: Workload
    candidates: tuple[Candidate, ...]
    directions: tuple[str, ...]


@dataclass(frozen=True)
class BenchPlan:
    """The cells of a bench and how their candidates are chosen. Raises `BadRequest` for an unknown word."""

    layers: tuple[str, ...] = tuple(KERNELBENCH)
    directions: tuple[str, ...] = DIRECTIONS
    precision: str = "tf32"                # the class: one of CLASSES; it determines the dtype
    memory_format: str = CONTIGUOUS
    size: str = "full"
    configs: str = ""                      # one of CONFIGS; "": default if all layers are KernelBench's, else known
    sweep: int = 0                         # configs sampled per variant, beside the best known or default one
    top: int = 0                           # run only this many of the fastest known candidates of a cell
    known: Path | None = None              # a file of best known configs that replaces the shipped one
    seed: int = 0
    variants: tuple[str, ...] = ()         # () = every one that applies
    without: tuple[str, ...] = ()          # variants that are left out, for example slow ones
    effort: str = "normal"
    strength: str = STRONG                 # of the baselines: quick | strong | default (only PyTorch's defaults, no candidate)
    max_autotune: bool = False             # also measure strong baselines with Inductor's max-autotune
    templates: Path | None = None
    modules: bool = False                  # whole modules of the best known kernels against nn.ConvTranspose, nothing else

    def __post_init__(self) -> None:
        names = tuple(dict.fromkeys(preset(name).name for name in self.layers))
        if self.modules and (self.configs or self.variants or self.without or self.strength == DEFAULTS or self.known):
            raise BadRequest("A bench of whole modules takes the best known kernels of each layer; leave out --configs, "
                             "--known, --variant, --without and --baselines default.", field="modules")
        if self.modules and self.precision not in (first for first, *_ in CLASSES_OF.values()):
            raise BadRequest(f"A bench of whole modules compares with PyTorch in any mode; the class {self.precision} has only "
                             "some of them. Leave out --precision.", field="precision")
        object.__setattr__(self, "layers", names)
        if not self.configs:
            object.__setattr__(self, "configs", "default" if set(names) <= set(KERNELBENCH) else "known")
        for value, known, field in ((self.precision, CLASSES, "precision"), (self.size, SIZES, "size"),
                                    (self.configs, CONFIGS, "configs")):
            if value not in known:
                raise BadRequest(f"{field} {value!r} is not known; choose {', '.join(known)}.", field=field)
        check_judging(self.effort, self.strength, self.max_autotune)
        for direction in self.directions:
            if direction not in LAUNCHES:
                raise BadRequest(f"direction {direction!r} is not known; choose {', '.join(LAUNCHES)}.",
                                 field="directions")
        if not self.layers or not self.directions:
            raise BadRequest("A bench needs at least one layer and one direction.", field="layers")
        if (self.configs == "sweep") != (self.sweep > 0):
            raise BadRequest("A sweep needs the number of configs to sample; give it, as in --configs sweep "
                             "16.", field="configs")
        if (self.configs == "top") != (self.top > 0):
            raise BadRequest("The choice top needs the number of fastest known candidates; give it, as in --configs top "
                             "1.", field="configs")
        if self.known is not None and not self.known.is_file():
            raise BadRequest(f"{self.known} does not exist; --known names a file that --write-best has written.", field="known")
        if self.known is not None:
            load(self.known)  # an unreadable file is reported now, even if no config of it is needed
        _ = self.workloads  # raises where a layer has no such memory format
        there = discover(self.templates)
        refuse_broken(self.variants, self.directions, self.templates)
        for name in (*self.variants, *self.without):
            if name not in {v.name for v in there} | {v.key for v in there}:
                raise BadRequest(f"There is no variant {name!r}; {or_nearest(name, (v.name for v in there))}", field="variant")

    @property
    def workloads(self) -> list[Workload]:
        return [preset(name).workload(self.size, dtype_of(self.precision), memory_format=self.memory_format)
                for name in self.layers]

    def jobs(self, *, sm: int, arch: str) -> list[Job]:
        """The jobs in their order: first every layer with the first config of every variant that applies, then the other
        configs. So a bench that is stopped early has a result for every cell. A bench of PyTorch's defaults has no candidates.
        """
        if self.strength == DEFAULTS:
            return [Job(workload, (), self.directions) for workload in self.workloads]
        if self.modules:
            return [job for workload in self.workloads if (job := self._recipe(workload, arch))]
        chosen = [(workload, self.candidates(workload, sm=sm, arch=arch)) for workload in self.workloads]
        jobs = [self._job(workload, [found[0] for found in lists]) for workload, lists in chosen]
        for workload, lists in chosen:
            rest = [candidate for found in lists for candidate in found[1:]]
            jobs += [self._job(workload, rest[i:i + _MOST_PER_JOB]) for i in range(0, len(rest), _MOST_PER_JOB)]
        return jobs

    def _recipe(self, workload: Workload, arch: str) -> Job | None:
        """The kernels of the best known recipe; None if there is none, as where PyTorch is faster in all directions."""
        try:
            _, used = best_recipe(workload, _known_arch(arch), precision=self.precision)
        except BadRequest:
            return None
        return Job(workload, tuple(e.candidate(workload, root=self.templates) for e in used), tuple(e.direction for e in used))

    def _job(self, workload: Workload, candidates: Sequence[Candidate]) -> Job:
        there = {c.variant.direction for c in candidates}
        return Job(workload, tuple(candidates), tuple(d for d in self.directions if d in there))

    def candidates(self, workload: Workload, *, sm: int, arch: str) -> list[list[Candidate]]:
        """One list for each variant and precision that applies: its best known or default config, then the known or the sampled
        ones. For `top`, one list for each of the fastest known candidates of a direction."""
        if self.configs == "top":
            return [[candidate] for direction in self.directions for candidate in self._top(workload, direction, arch)]
        found = [self._of_variant(variant, workload, precision, sm=sm, arch=arch)
                 for variant in discover(self.templates) if variant.direction in self.directions
                 and self._wanted(variant) for precision in precisions(variant, self.precision)]
        return [candidates for candidates in found if candidates]

    def _top(self, workload: Workload, direction: str, arch: str) -> list[Candidate]:
        there = ranked(direction, workload, self.precision, _known_arch(arch), root=self.templates, file=self.known)
        made = (entry.candidate(workload, root=self.templates) for entry in there)
        return list(islice((c for c in made if self._wanted(c.variant)), self.top))

    def _wanted(self, variant: Variant) -> bool:
        names = {variant.name, variant.key}
        return (not self.variants or bool(names & set(self.variants))) and not names & set(self.without)

    def _of_variant(self, variant: Variant, workload: Workload, precision: str, *, sm: int, arch: str
                    ) -> list[Candidate]:
        space = SearchSpace(variant, workload.layer, workload.dtype, sm, precision, variant.forms[0],
                            workload.memory_format)
        start = self._start(space, workload, arch)
        if start is None:
            return []
        if self.configs == "known":
            more = self._known(space, workload, arch)
        else:
            more = [c for c in (space.sample(self.sweep + 1, seed=self.seed) if self.sweep else []) if c != start][:self.sweep]
        return [space.candidate(config) for config in (start, *(c for c in more if c != start))]

    def _known(self, space: SearchSpace, workload: Workload, arch: str) -> list[dict[str, int]]:
        """The configs of the variant that are known in the cell, the fastest first."""
        there = ranked(space.variant.direction, workload, self.precision, arch, variant=space.variant.name,
                       root=self.templates, file=self.known) if arch.startswith("sm_") else iter(())
        configs = [space.variant.config(entry.config) for entry in there if entry.precision == space.precision]
        return [config for at, config in enumerate(configs) if config not in configs[:at]]

    def _start(self, space: SearchSpace, workload: Workload, arch: str) -> dict[str, int] | None:
        """The best known config if `configs` asks for it, else the default or the nearest config that can run. None if there is
        none."""
        if self.configs not in ("default", "known") and arch.startswith("sm_"):
            known = best_config(space.variant.direction, workload, self.precision, arch, variant=space.variant.name,
                                root=self.templates, file=self.known)
            if known is not None and known.precision == space.precision:
                return space.variant.config(known.config)
        return space.nearest(space.default)


def _known_arch(arch: str) -> str:
    """The architecture whose best known configs are taken; the emulator takes those of a GPU."""
    return arch if arch.startswith("sm_") else f"sm_{EMULATED_SM}"


def dtype_of(precision_class: str) -> str:
    """The dtype of a class."""
    return next(dtype for dtype, classes in CLASSES_OF.items() if precision_class in classes)


def suite_layers(suite: str, memory_format: str = CONTIGUOUS) -> tuple[str, ...]:
    """The layers of a suite that have that memory format: PyTorch has channels_last for 2-D and 3-D only."""
    return tuple(p.name for p in SUITES[suite].values() if p.layer.dims > 1 or memory_format == CONTIGUOUS)


def precisions(variant: Variant, precision_class: str) -> Sequence[str]:
    """The precisions in which the variant is run for that class; () if it does not belong to the class."""
    for group in _OFFERED[precision_class]:
        found = [p for p in group if p in variant.precision]
        if found:
            return found
    return ()
