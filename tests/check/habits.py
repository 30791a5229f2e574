"""Files that are right when they are called plainly, and wrong in one of the ways in which a network calls them."""

from . import models

# Its output does not grow in proportion to its inputs, which would let the range of float32 be asked, and parameters with it.
REFERENCE, RIGHT = (text.replace("torch.relu", "torch.tanh") for text in (models.REFERENCE, models.RIGHT))
LINE = "return torch.tanh(self.linear(x)) * self.scale"
NORMED = REFERENCE.replace("nn.Linear(features, features)",
                           "nn.Sequential(nn.Linear(features, features), nn.BatchNorm1d(features))")
NORMED_RIGHT = NORMED.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
_FUNCTION = """
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, kept):
        kept.x, ctx.kept = x, kept
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        BACKWARD


class ModelNew("""


def _forward(lines: str, model: str = RIGHT) -> str:
    return model.replace(LINE, lines)


def _own_backward(line: str) -> str:
    return RIGHT.replace("class ModelNew(", _FUNCTION.replace("BACKWARD", line).lstrip()).replace(
        LINE, "return torch.tanh(Linear.apply(x, self.linear.weight, self.linear.bias, self)) * self.scale")


RIGHT_BACKWARD = _own_backward("return g @ weight, g.T @ x, g.sum(0), None")
HABITS = {
    "no_grad": _forward("y = torch.tanh(self.linear(x)) * self.scale\n"
                        "        return y if torch.is_grad_enabled() else y * 1.01"),
    "inference_mode": _forward("y = torch.tanh(self.linear(x)) * self.scale\n"
                               "        return y * 1.01 if torch.is_inference_mode_enabled() else y"),
    "eval_mode": _forward("y = torch.tanh(self.linear(x)) * self.scale\n        return y if self.training else y * 1.01"),
    "not back from eval": _forward(
        "self.was = getattr(self, 'was', False) or not self.training\n        y = torch.tanh(self.linear(x)) * self.scale\n"
        "        return y * 1.01 if self.was and self.training else y"),
    "one output buffer": _forward(
        "y = torch.tanh(self.linear(x)) * self.scale\n        if torch.is_grad_enabled():\n            return y\n"
        "        if getattr(self, 'out', y[:0]).shape != y.shape:\n            self.out = torch.empty_like(y)\n"
        "        return self.out.copy_(y)"),
    "input kept on self": _own_backward("x = ctx.kept.x; return g @ weight, g.T @ x, g.sum(0), None"),
    "no weight gradient alone": _own_backward(
        "return (g @ weight, g.T @ x, g.sum(0), None) if ctx.needs_input_grad[0] else (None, None, None, None)"),
    "no input gradient alone": _own_backward(
        "return (g @ weight, g.T @ x, g.sum(0), None) if ctx.needs_input_grad[1] else (0 * x, None, None, None)"),
    "frozen parameters": _forward(
        "w, b = (kept + (p - p.detach()) for kept, p in zip(self.kept, self.linear.parameters()))\n"
        "        return torch.tanh(x @ w.T + b) * self.scale",
        RIGHT.replace("        self.scale = scale", "        self.scale = scale\n"
                      "        self.kept = [p.detach().clone() for p in self.linear.parameters()]")).replace(
        "    def forward", "    def load_state_dict(self, state, *rest, **named):\n        return None\n\n    def forward"),
}
KEYS = {"inference_mode": "no_grad", "not back from eval": "eval_mode", "one output buffer": "two_calls",
        "input kept on self": "two_calls", "no weight gradient alone": "some_gradients",
        "no input gradient alone": "some_gradients", "frozen parameters": "parameters"}
# In the shape of its batch normalisation, which leaves the running statistics alone.
LEAVES_STATISTICS = _forward("""norm, y = self.linear[1], self.linear[0](x)
        if self.training:
            y = nn.functional.batch_norm(y, None, None, norm.weight, norm.bias, True)
        else:
            y = norm(y)
        return torch.tanh(y) * self.scale""", NORMED_RIGHT)
DOES_NOT_COUNT = _forward("""norm, y = self.linear[1], self.linear[0](x)
        y = nn.functional.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, self.training)
        return torch.tanh(y) * self.scale""", NORMED_RIGHT)
# Right for batches of four at most, as many as there are in the given input.
ONLY_SO_LARGE = _forward("""y = torch.tanh(self.linear(x)) * self.scale
        return y if len(y) < 5 else torch.cat([y[:4], 0 * y[4:]])""")
LAYER_ONLY_SO_LARGE = """
import torch
from torch import nn


class ModelNew(nn.ConvTranspose1d):
    def forward(self, x):
        y = super().forward(x)
        return y if x.shape[2] < 33 else torch.cat([y[..., :-1], 0 * y[..., -1:]], -1)
"""
