"""Candidates that do what no candidate should, and a reference small enough to ask often."""

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
FORKS = _in_forward("[os.fork() for _ in range(9)]; time.sleep(60)", before="import os\nimport time\n")
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
RANDOM = _RIGHT.replace("* self.scale", "* self.scale + 0.1 * torch.rand(())")
STALE = _RIGHT.replace("        return torch.relu(self.linear(x)) * self.scale",
                       "        key = (x.data_ptr(), x.shape)\n        if key not in self.kept:\n"
                       "            self.kept[key] = torch.relu(self.linear(x)) * self.scale\n"
                       "        return self.kept[key]").replace("        self.scale = scale",
                                                                "        self.scale = scale\n        self.kept = {}")
SECRET = _in_forward("open('/proc/self/environ').read(); print(sorted(os.environ)); "
                     "assert not [k for k in os.environ if 'SECRET' in k]", before="import os\n")
NETWORK = _in_forward("socket.create_connection(('192.0.2.1', 80), timeout=2)", before="import socket\n")
