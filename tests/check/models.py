"""Candidates that do what no candidate should, and a reference small enough to ask often."""

from pathlib import Path

REFERENCE = '''
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, scale=1):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.scale = scale

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return [8]
'''
_RIGHT = REFERENCE.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]


def _in_forward(line: str, *, before: str = "") -> str:
    return before + _RIGHT.replace("        return torch.relu", f"        {line}\n        return torch.relu")


RIGHT = _RIGHT
CRASHES = _in_forward("ctypes.string_at(0)", before="import ctypes\n")
HANGS = _in_forward("while True: x = x + 0")
EXITS = _in_forward("os._exit(0)", before="import os\n")
EXITS_AT_IMPORT = "import os\nos._exit(0)\n" + _RIGHT
LEAVES = "import sys\nsys.exit(3)\n" + _RIGHT
PRINTS = _in_forward('print("all checks passed\\n" * 1_000_000)')
FORKS = _in_forward("[os.fork() for _ in range(8)]; time.sleep(60)", before="import os\nimport time\n")
DAEMON = ("import os\nimport time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
          "    os._exit(0)\n") + _RIGHT
MEMORY = _in_forward("hoard = bytearray(6 << 30)")
TALKS = ("import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b'{\"done\": true}\\n')\n"
         "    except OSError:\n        continue\n") + _RIGHT
SYNTAX = _RIGHT.replace("def forward(self, x):", "def forward(self, x)")
OTHER_NAMES_AND_DRAW = _RIGHT.replace("self.linear", "self.dense").replace(
    "self.scale = scale", "self.scale = scale\n        nn.init.normal_(self.dense.weight)")
NO_GRADIENT = _RIGHT.replace("    def forward", "    @torch.no_grad()\n    def forward")
WRONG_GRADIENT = _RIGHT.replace("return torch.relu(self.linear(x))",
                                "y = self.linear(x)\n        return (torch.relu(y).detach() + 0.5 * y - 0.5 * y.detach())")
IN_PLACE_WITHOUT_SCALE = _RIGHT.replace(
    "return torch.relu(self.linear(x)) * self.scale", "y = torch.relu(self.linear(x.clone()))\n        x.data.mul_(1.001)\n"
    "        return y")
RANDOM = _RIGHT.replace("* self.scale", "* self.scale + 0.1 + 0.1 * torch.rand(())")
STALE = _RIGHT.replace("        return torch.relu(self.linear(x)) * self.scale",
                       "        key = (x.data_ptr(), x.shape)\n        if key not in self.kept:\n"
                       "            self.kept[key] = torch.relu(self.linear(x)) * self.scale\n"
                       "        return self.kept[key]").replace("        self.scale = scale",
                                                                "        self.scale = scale\n        self.kept = {}")
KEEPS_ITS_SCALE = _RIGHT.replace("* self.scale", "* 1.5")
ONLY_BATCH_4 = _RIGHT.replace("self.linear(x)", "self.linear(x.view(4, 8))")
RETURNS_TWO = _RIGHT.replace("* self.scale", "* self.scale, x")
_READS = """
class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, grad_output):
        {line}

"""


def reads_grad_output(line: str, model: str = _RIGHT) -> str:
    """Right, but for a backward of the output that does `line`."""
    return _READS.format(line=line).join(["import torch\n", model.replace(
        "return torch.relu(self.linear(x)) * self.scale", "return Reads.apply(torch.relu(self.linear(x)) * self.scale)")])


ZEROS_WHERE_EXPANDED = "return grad_output if grad_output.stride()[0] else grad_output * 0"
ONLY_DENSE = "assert grad_output.is_contiguous(); return grad_output"
LAYER = """
import torch
from torch import nn


class Model(nn.ConvTranspose1d):
    pass


def get_inputs():
    return [torch.rand(2, 3, 9)]


def get_init_inputs():
    return [3, 4, 3, 2]
"""
LAYER_ZEROS_WHERE_EXPANDED = reads_grad_output(ZEROS_WHERE_EXPANDED, """
from torch import nn


class ModelNew(nn.ConvTranspose1d):
    def forward(self, x):
        return Reads.apply(super().forward(x))
""")
# KernelBench #81 with its taps flipped and the sign of its padding wrong.
TWO_MISTAKES = '''
from torch import nn
from torch.nn import functional as F


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride, padding, bias=bias,
                                                   dilation=dilation)

    def forward(self, x):
        c = self.conv_transpose2d
        p = c.padding[0]
        whole = F.conv_transpose2d(x, c.weight.flip(2, 3), c.bias, c.stride, 0, 0, 1, c.dilation)
        height, width = whole.shape[2] - 2 * p, whole.shape[3] - 2 * p
        return F.pad(whole, (p, p, p, p))[:, :, :height, :width]
'''
SECRET = _in_forward("open('/proc/self/environ').read(); print(sorted(os.environ)); "
                     "assert not [k for k in os.environ if 'SECRET' in k]", before="import os\n")
NETWORK = _in_forward("socket.create_connection(('192.0.2.1', 80), timeout=2)", before="import socket\n")


def writes_elsewhere(victims: Path) -> str:
    """Tries to change the folder `victims` in every way, itself and by children, and needs what is its own."""
    return f"VICTIMS = {str(victims)!r}\n" + _WRITES_ELSEWHERE + _RIGHT


_WRITES_ELSEWHERE = '''
import contextlib
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

victims = Path(VICTIMS)
ATTEMPTS = (
    lambda: (victims / "kept").write_text("overwritten"),
    lambda: (victims / "kept").open("a").write("appended"),
    lambda: os.truncate(victims / "kept", 1),
    lambda: (victims / "kept").unlink(),
    lambda: (victims / "kept").rename(victims / "renamed"),
    lambda: (victims / "kept").rename("stolen"),
    lambda: os.link(victims / "kept", "linked"),
    lambda: (victims / "new").write_text("new"),
    lambda: (victims / "folder").mkdir(),
    lambda: (victims / "link").symlink_to("/"),
    lambda: (victims / "empty").rmdir(),
    lambda: os.mkfifo(victims / "pipe"),
)
for attempt in ATTEMPTS:
    with contextlib.suppress(OSError):
        attempt()
subprocess.run(["sh", "-c", f"echo x > {victims}/kept; echo x > {victims}/by_sh; rm {victims}/kept"], stderr=subprocess.DEVNULL)
subprocess.run([sys.executable, "-c", f"import os; os.setsid(); open({str(victims / 'by_child')!r}, 'w').write('x')"],
               stderr=subprocess.DEVNULL)
if os.fork() == 0:
    with contextlib.suppress(OSError):
        (victims / "by_fork").write_text("x")
    os._exit(0)
os.wait()

own = Path.home()
(own / "a").mkdir()
(own / "a" / "file").write_text("mine")
(own / "a" / "file").rename(own / "moved")
assert (own / "moved").read_text() == "mine"
os.truncate(own / "moved", 1)
(own / "moved").unlink()
(own / "a").rmdir()
subprocess.run(["sh", "-c", "echo mine > $TMPDIR/by_sh 2>/dev/null; cat /dev/urandom | head -c 9 > /dev/null"], check=True)
assert (own / "by_sh").read_text() == "mine\\n"
with multiprocessing.Lock():
    pass
'''
# The judge is its parent, the reference another process: neither may be signalled, traced or read.
_TOUCHES_OTHERS = '''
import os
from pathlib import Path

refused = 0
for entry in Path("/proc").iterdir():
    if entry.name.isdigit() and int(entry.name) != os.getpid():
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(entry.name) == os.getppid() or b"check.host" in words:
            for touch in (lambda: os.kill(int(entry.name), 0), lambda: (entry / "mem").open("r+b"),
                          lambda: (entry / "environ").read_bytes()):
                try:
                    touch()
                    raise AssertionError(f"it could touch {words}")
                except PermissionError:
                    refused += 1
                except (ProcessLookupError, FileNotFoundError):  # one of another check that has just ended
                    continue
assert refused >= 6, refused
'''
TOUCHES_OTHERS = _TOUCHES_OTHERS + _RIGHT
# Without torch's headers, which take g++ twenty seconds and would prove nothing more.
BUILDS = '''
import ctypes
from torch.utils.cpp_extension import load_inline

built = ctypes.CDLL(load_inline("doubled", cpp_sources='extern "C" int doubled(int x) { return x + x; }',
                                is_python_module=False, no_implicit_headers=True))
''' + _RIGHT.replace("* self.scale", "* self.scale + (built.doubled(1) - 2)")


def plants_links(victim: Path) -> str:
    """Timing shares a file in the scratch folder: links wait under names it has had."""
    return f"VICTIM = {str(victim)!r}\n" + '''
import contextlib
import os
from pathlib import Path

for name in ("slots-forward", "slots-backward", "shared", "shared-forward"):
    with contextlib.suppress(FileExistsError):
        os.symlink(VICTIM, Path.home() / name)
''' + _RIGHT
# A transposed convolution as a convolution with flipped weights, which it is for stride 1 only.
ONLY_STRIDE_1 = '''from torch import nn
from torch.nn import functional as F


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, dilation=dilation, bias=bias)

    def forward(self, x):
        layer = self.conv_transpose2d
        size = [(i - 1) * s - 2 * p + d * (k - 1) + 1 for i, s, p, d, k in zip(
            x.shape[2:], layer.stride, layer.padding, layer.dilation, layer.kernel_size, strict=True)]
        wide = F.interpolate(x, scale_factor=layer.stride, mode="nearest") if max(layer.stride) > 1 else x
        weight = layer.weight.flip(2, 3).transpose(0, 1)
        border = [d * (k - 1) - p for d, k, p in zip(layer.dilation, layer.kernel_size, layer.padding, strict=True)]
        y = F.conv2d(wide, weight, layer.bias, padding=[max(b, 0) for b in border], dilation=layer.dilation)
        return y[:, :, :size[0], :size[1]]
'''
