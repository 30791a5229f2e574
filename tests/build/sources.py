"""Small CUDA sources, requests for them, and a way to build in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from workbench.core.orders import BuildOrder
from workbench.core.replies import Built
from workbench.core.typed import read, to_json

ROOT = Path(__file__).resolve().parents[2]
ANSWER = 'extern "C" int answer() { return 42; }\n'
TWICE = """#line 1 "forward/twice.cu"
#include <cuda_runtime.h>
__global__ void twice(const float* in, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * in[i];
}
extern "C" int kw_twice(const float* in, float* out, int count) {
  twice<<<(count + 63) / 64, 64>>>(in, out, count);
  return cudaGetLastError();
}
"""


# Builds the order that is its argument.
PROGRAM = """import json, sys
from workbench.core.orders import BuildOrder
from workbench.core.typed import read, to_json
from workbench.measure.build.build import build
print(to_json(build(read(BuildOrder, json.loads(sys.argv[1])), lambda event: None)))
"""


def held_source(folder: Path) -> tuple[str, Path]:
    """A source that says a word at once and then keeps g++ waiting, until `let_go` is given the pipe that it includes."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    return f'#warning the compiler has begun\n#include "{pipe}"\n{ANSWER}', pipe


def let_go(pipe: Path) -> None:
    """All that wait for it go on."""
    pipe.open("w").close()


def request(source: str, cache: Path, **more: Any) -> BuildOrder:
    """As a worker reads it from the wire."""
    return read(BuildOrder, json.loads(to_json({"source": source, "device": "cpu", "cache": cache, **more})))


def build_elsewhere(asked: BuildOrder, **environment: str) -> subprocess.Popen[str]:
    """The build in a process group of its own; its result is the last line it prints."""
    return subprocess.Popen([sys.executable, "-c", PROGRAM, to_json(asked)], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, **environment})


def result_of(process: subprocess.Popen[str]) -> Built:
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, out
    return read(Built, json.loads(out.splitlines()[-1]))
