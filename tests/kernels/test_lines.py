"""implicit_gemm_mma with LINES: rows of any alignment, one or several of them in a warp's run, bias, cropped begins and
ends, residues that no tap meets, channels that do not fill a tile. LEAN places the same tiles by multiplication."""

from __future__ import annotations

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import FORWARD, GRAD_INPUT, ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, find

from .harness import Library, build_emulated, candidate, run

WORKLOADS = [
    Workload(ConvTranspose(1, 16, 24, 3, 2, 1, dilation=2), 2, (371,)),                 # odd rows, zeros between values
    Workload(ConvTranspose(1, 8, 32, 5, 3, 2, dilation=3, bias=False), 2, (602,)),      # two cropped at the begin
    Workload(ConvTranspose(2, 16, 16, 3, 2, 1, bias=False), 2, (9, 30)),                # 3 rows of 59 in a run
    Workload(ConvTranspose(2, 8, 16, (3, 2), (5, 3), 1, dilation=(2, 1)), 2, (5, 131)),  # whole rows of zeros, with bias
    Workload(ConvTranspose(2, 8, 16, (1, 3), (3, 5), (0, 1), dilation=2, bias=False), 1, (6, 137)),  # and without
    Workload(ConvTranspose(3, 16, 16, 3, 2, 1, groups=2, bias=False), 1, (3, 4, 133)),
    Workload(ConvTranspose(2, 8, 16, 3, 1, 1, bias=False), 2, (6, 131)),                # no stride
]
CONFIGS = [{"LINES": 1}, {"LINES": 2, "LEAN": 1}, {"LINES": 2, "STRIP": 4, "ROLL": 1}, {"LINES": 1, "STRIP": 4, "LEAN": 1}]


def members(direction: str) -> list[tuple[Candidate, Workload]]:
    variant = find("implicit_gemm_mma", direction, root=TEMPLATES)
    return [(candidate(variant, workload, form="constant", **config), workload)
            for i, workload in enumerate(WORKLOADS) for config in (CONFIGS if i == 0 else CONFIGS[i % 2 * 2:][:2])]


@pytest.fixture(scope="module", params=[FORWARD, GRAD_INPUT])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
          ) -> tuple[Library, list[tuple[Candidate, Workload]]]:
    pairs = members(request.param)
    assert all(why_not(one, sm=EMULATED_SM) is None for one, _ in pairs)
    return build_emulated(list(dict.fromkeys(one for one, _ in pairs)), tmp_path_factory.mktemp("lines")), pairs


@pytest.mark.parametrize("order", [1, 7, "reverse"])
def test_results_leave_whole(built: tuple[Library, list[tuple[Candidate, Workload]]], order: int | str) -> None:
    library, pairs = built
    for one, workload in pairs:
        outcome = run(library, one, workload, order=order)
        assert outcome.status == "OK", (workload, one.config, outcome)
