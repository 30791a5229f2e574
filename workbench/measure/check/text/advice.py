"""What to do about an exception of the foreign file: by its kind, and by the line it came from."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from ....core.trial import Status
from ..foreign.process import Ended, Raised
from ..foreign.replies import InlineCall

H = TypeVar("H")   # a place: a text, or what writes itself as one
_NOT_OF_MODULE = re.compile(r"module '([\w.]{1,80})' has no attribute '(\w{1,60})'")
_ARGUMENTS = re.compile(r"(?P<of>[\w.]{1,100})\(\) (?:missing \d+ |takes |got an unexpected keyword |got multiple values |"
                        r"got some positional)")
_MODULES = sys.stdlib_module_names | {"torch", "numpy", "triton"}
_USUAL = {
    "nn": "from torch import nn", "F": "import torch.nn.functional as F", "np": "import numpy as np",
    "Tensor": "from torch import Tensor", "load_inline": "from torch.utils.cpp_extension import load_inline",
    "tl": "import triton.language as tl", "Path": "from pathlib import Path", "partial": "from functools import partial",
    "lru_cache": "from functools import lru_cache", "dataclass": "from dataclasses import dataclass",
    "Function": "from torch.autograd import Function",
    **{name: f"from typing import {name}" for name in ("Any", "Callable", "Dict", "List", "Optional", "Tuple", "Union")},
    **{name: f"from math import {name}" for name in ("ceil", "floor", "prod", "sqrt")}}

# Errors of CUDA: the words of the message, the status, and the advice.
_OF_CUDA = (
    ("invalid configuration argument", Status.LAUNCH_FAILED,
     "Launch 1 to 1024 threads in a block (z at most 64) and at least 1 block in each dimension (y and z at most 65535)."),
    ("too many resources requested", Status.LAUNCH_FAILED,
     "The block needs more registers than a multiprocessor has: launch fewer threads, or write __launch_bounds__ before the "
     "kernel."),
    ("invalid argument", Status.LAUNCH_FAILED,
     "Launch at least 1 block. Above 48 KiB of dynamic shared memory call cudaFuncSetAttribute(kernel, "
     "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) before the launch, and stay below the GPU's limit."),
    ("no kernel image is available", Status.LAUNCH_FAILED,
     "It is built for another GPU: remove -arch and -gencode from extra_cuda_cflags."),
    ("invalid device function", Status.LAUNCH_FAILED,
     "It is built for another GPU: remove -arch and -gencode from extra_cuda_cflags."),
    ("out of memory", Status.OUT_OF_MEMORY, "Allocate less, or free tensors that are not needed."),
    ("illegal memory access", Status.KERNEL_FAULT,
     "Test each index before its load or store, and pass only pointers of CUDA tensors. compute-sanitizer names the line."),
    ("misaligned address", Status.KERNEL_FAULT,
     "Load a float4 only from an address that is a multiple of 16 bytes: test the offset, or load single values."),
    ("device-side assert", Status.KERNEL_FAULT, "Look at the assert in the kernel, and test the index that it names."),
    ("divergent __syncthreads", Status.KERNEL_FAULT,
     "Let all threads of a block reach the same __syncthreads(): move it out of the branch, and return after it."),
    ("launch timed out", Status.RUN_TIMEOUT, "Look for a loop without an end in the kernel."),
    ("", Status.KERNEL_FAULT, "Run it under compute-sanitizer: it names the line."))
ASKED = {  # in daily use
    "no_grad": "Right under no_grad and in inference_mode?", "threads": "Right in several threads at once?",
    "eval_mode": "Right after .eval(), and back again?",
    "buffers": "Changes its buffers as the reference does?", "two_calls": "Right while two outputs are in use?",
    "some_gradients": "Right when only some gradients are wanted?", "second_backward": "Right for a second backward?",
    "views": "Right for views, as inputs and as grad_output?",
    "in_training": "Right in a training loop?",
    "overwritten": "Right when input or parameters change before the backward?",
    "parameters": "Right when its parameters have changed?",
    "modes": "Right when its mode changes?",
    "copied": "Right as a deep copy?", "left_alone": "Leaves its state, grad_output and seeds alone?",
    "settings": "Leaves settings of torch and the process alone?", "strides": "Same order in memory as in the reference?",
    "kernels_ran": "Does its CUDA code run here?", "resets": "Draws anew in reset_parameters()?",
    "refuses": "Raises for too many channels?", "later_bias": "Uses a bias that it gets later?",
    "second_derivative": "Right second derivatives?", "double": "As exact in float64 as the reference?",
    "bfloat16": "Right in bfloat16 and under autocast?", "default_dtype": "Right where torch's default dtype is another?",
    "numbers": "Right for other numbers among its inputs?", "leading": "Right for one more leading dimension?",
    "unbatched": "Right for a sample without a batch?", "kept": "Frees the tensors of its calls?",
    "attributes": "Sets the same tensors on itself?"}
KEYS = tuple(key for key in ASKED if key not in ("buffers", "strides", "kernels_ran", "resets", "refuses", "later_bias",
                                                 "numbers", "leading", "unbatched", "kept", "attributes", "second_derivative",
                                                 "double", "bfloat16", "default_dtype"))
OF_DAILY_USE = {
    "no_grad": "Compute the same values with and without gradient recording.",
    "threads": "Allocate temporary tensors in each call. Do not keep them in self or in static variables.",
    "eval_mode": "Do the same as the reference if self.training is False.",
    "two_calls": "Allocate a new output in each call. Save tensors for backward in ctx, not in self.",
    "in_training": "Keep no data from one call to the next, even if a call raises an exception. Do not change gradients.",
    "some_gradients": "Test ctx.needs_input_grad for each input separately.",
    "second_backward": "Save tensors with ctx.save_for_backward, and let autograd add up the gradients.",
    "views": "Read inputs and grad_output by their strides and storage offset, or take .contiguous() first.",
    "overwritten": "Save tensors with ctx.save_for_backward: autograd then notices that they have changed. Do not save the "
                   "output, unless the reference's operators do. Return no view from an autograd.Function.",
    "parameters": "Read the parameters in each call. Do not keep a copy of them.",
    "refuses": "Compare the number of channels of the input with in_channels, and raise an exception.",
    "modes": "Test self.training, torch.is_grad_enabled() and requires_grad in each call. Keep nothing that depends on them.",
    "copied": "Keep tensors in parameters and buffers, and none with its graph.",
    "resets": "Draw all parameters in each call of reset_parameters(), as the reference draws them.",
    "numbers": "Read the numbers among the inputs in each call. Keep none of them.",
    "leading": "Treat all dimensions ahead of the last ones as the batch, or raise an exception.",
    "kept": "Keep no tensor of a call in self, in a list, or in a cache without a limit.",
    "attributes": "Set the attributes that the reference's forward sets: a loss may be made of them.",
    "unbatched": "Add the batch dimension and remove it again, or raise an exception.",
    "later_bias": "Test in each call whether self.bias is None.",
    "second_derivative": "Use ctx.save_for_backward and differentiable operations in backward, or mark it once_differentiable.",
    "double": "Compute in the dtype of the input, or raise an exception for a dtype that the file does not support.",
    "bfloat16": "Test the dtypes of input and parameters, and convert them where torch.is_autocast_enabled().",
    "default_dtype": "Give each new tensor its dtype: x.options() or dtype=x.dtype.",
    "left_alone": "Write only to the buffers to which the reference writes. Draw random numbers from a generator of your own.",
    "settings": "Do not change what belongs to the whole process, or restore it.",
    "strides": "Return contiguous tensors, as the reference does, if other code reads their memory.",
    "kernels_ran": "Check it on a GPU, or call the kernel where x.is_cuda is False, too: here the tensors are on the CPU."}
_NO_CYCLE = "Let no Function put its output on ctx, and let no function inside forward call itself."
STAYS = {   # what `host.lifetimes.lifetimes` says -> what the report says, and what to do
    "kept": ("Inputs or outputs of its calls stay in memory, so each call needs more of it.", OF_DAILY_USE["kept"]),
    "grows": ("Each call leaves a tensor in memory.", OF_DAILY_USE["kept"]),
    "outputs": ("The output of each call stays in memory until Python's garbage collector runs.", _NO_CYCLE),
    "inputs": ("The input of each call stays in memory until Python's garbage collector runs.", _NO_CYCLE),
    "holds": ("Its input stays in memory after the backward while the output is in use. saved_tensors_hooks get no tensor, and "
              "a second backward without retain_graph raises no exception.",
              "Use ctx.save_for_backward. Keep no tensor as an attribute of ctx."),
    "module": ("A copy of the module that was called and deleted stays in memory.",
               "Use no functools.lru_cache on a method, and keep no module in a global list.")}


def advice_for_construction(error: Raised | Ended) -> str:
    if isinstance(error, Ended):
        return error.advice
    return advice_for(error, arguments="Take the arguments of the reference's Model, in its order.",
                      otherwise="Run the file alone, and construct the class with the reference's arguments.")


def of_cuda(error: Raised) -> tuple[Status, str] | None:
    """Status and advice of an error that CUDA reports."""
    said = error.message.partition("CUDA error: ")[2] or ("unknown" if error.type == "AcceleratorError" else "")
    if not said:
        return None
    return next((status, advice) for words, status, advice in _OF_CUDA if words in said.split("\n")[0])


def advice_for(error: Raised, *, arguments: str, otherwise: str) -> str:
    """The advice for an exception. `arguments`: the advice if a call from outside has the wrong arguments. `otherwise`: the
    advice if no line of the file raised it."""
    here = f"line {error.line}" if error.line else "the file"
    message = error.message
    if error.type == "TypeError" and not error.inside and _ARGUMENTS.search(message):
        return arguments
    if found := _NOT_OF_MODULE.search(message):
        return _not_in_module(found[1], found[2], here, error.detail.calls)
    for pattern, advice in _RULES:
        if found := pattern.search(f"{error.type}: {message}"):
            return advice(found, here)
    return f"Look at {here}." if error.line else otherwise


def _undefined(found: re.Match[str], here: str) -> str:
    name = found[1]
    missing = f"import {name}" if name in _MODULES else _USUAL.get(name)
    return f"Write '{missing}' at the top of the file." if missing else \
        f"Define {name} before {here} uses it, or correct its name."


def _no_module(found: re.Match[str], here: str) -> str:
    top, _, rest = found[1].partition(".")
    if rest and top in sys.modules:
        return f"Correct {found[1]} in {here}: the {top} that is installed has no such module."
    return f"Install {top} here, or remove the import."


def _not_importable(found: re.Match[str], here: str) -> str:
    near = _near(found[1], found[2])
    return f"Write {near} in {here}." if near else \
        f"Correct {found[1]} in {here}, or install a version of {found[2].partition('.')[0]} that has it."


def _not_in_module(module: str, name: str, here: str, calls: Sequence[InlineCall]) -> str:
    if (call := next((c for c in calls if c.name == module), None)) is not None:
        bound = " or ".join(call.functions)
        return f"Call {bound} in {here}, or name {name} in functions." if bound else f"Name {name} in functions."
    near = _near(name, module)
    return f"Write {near} in {here}." if near else \
        f"Correct {name} in {here}, or install a version of {module.partition('.')[0]} that has it."


def _near(name: str, module: str) -> str:
    """The name in a module that this process has imported, too; "" if none is near."""
    there = [n for n in dir(sys.modules.get(module)) if not n.startswith("_")] if module in sys.modules else []
    return next(iter(difflib.get_close_matches(name, there, n=1, cutoff=0.7)), "")


def _attribute(found: re.Match[str], here: str) -> str:
    cls, name = found[1], found[2]
    if cls.endswith("Backward"):
        return f"Write ctx.{name} = ... in forward: {here} reads it in backward."
    return f"Set {name} on the {cls} before {here} reads it, or correct the name."


def rule(pattern: str, advice: str | Callable[[re.Match[str], H], str]) -> tuple[
        re.Pattern[str], Callable[[re.Match[str], H], str]]:
    """`advice` as a text: {here} is the place, {0} and {1} are what the pattern found."""
    return re.compile(pattern), advice if callable(advice) else lambda found, here: advice.format(*found.groups(""), here=here)


# Of `type: message`; the first that matches counts.
_RULES = (
    rule(r"name '(\w{1,60})' is not defined", _undefined),
    rule(r"cannot access local variable '(\w{1,60})'|local variable '(\w{1,60})' referenced",
          "Give {0}{1} a value on every path before {here}."),
    rule(r"No module named '([\w.]{1,80})'", _no_module),
    rule(r"cannot import name '(\w{1,60})' from '([\w.]{1,80})'", _not_importable),
    rule(r"must be (?:of type )?(?:a )?`?(?:tl\.)?constexpr", "Declare the parameter as tl.constexpr: {here} needs its value "
          "at compile time."),
    rule(r"power of (?:2|two)", "Make the size in {here} a power of two, and mask the elements beyond the end."),
    rule(r"[Mm]ask .*(?:bool|type)|mask argument", "Give {here} a mask of booleans: a comparison such as offsets < n."),
    rule(r"^IndentationError|^TabError", "Indent {here} like the lines around it."),
    rule(r"^SyntaxError: unterminated triple-quoted", "Close the string that begins in {here}."),
    rule(r"^SyntaxError: unterminated string", "Close the string in {here}."),
    rule(r"^SyntaxError: '(.)' was never closed", "Close the {0} of {here}."),
    rule(r"^SyntaxError", "Correct {here}."),
    rule(r"^FileNotFoundError: .*: '(.{1,200})'",
          "Put the text of {0} into the file: the file is checked alone, in an empty folder."),
    rule(r"^RecursionError", "End the recursion: {here} calls itself again and again."),
    rule(r"cannot assign (?:module|parameter)s? before Module.__init__", "Call super().__init__() first in __init__."),
    rule(r"^TypeError: (\w+) is not an nn\.Module$", "Write class {0}(nn.Module)."),
    rule(r"^TypeError: (\w+)\(\) returns \w+, not the module", "Return self from {0}()."),
    rule(r"in loading state_dict", "Make the same parameters as the reference for the same arguments."),
    rule(r"missing the required \"forward\" function", "Define forward, with the arguments of the reference's."),
    rule(r"must implement either the backward or vjp", "Define a static method backward in the autograd.Function."),
    rule(r"must implement the forward function|You must implement the forward",
          "Define a static method forward in the autograd.Function."),
    rule(r"Legacy autograd function", "Call the Function by its .apply(...) in {here}."),
    rule(r"incorrect number of gradients \(expected (\d+), got (\d+)\)",
          "Return {0} values from backward: one for each argument of forward after ctx, None where there is no gradient."),
    rule(r"invalid gradient at index (\d+) - got (\[[\d, ]*\]) but expected shape compatible with (\[[\d, ]*\])",
          "Return a tensor of the shape {2} from backward, as value {0} (counted from 0)."),
    rule(r"not enough values to unpack \(expected (\d+), got 0\)",
          "Give the names in {here} their {0} values. If they are ctx.saved_tensors, call ctx.save_for_backward in forward."),
    rule(r"values to unpack \(expected (\d+)", "Give the names in {here} exactly {0} values."),
    rule(r"'_OpNamespace' '(\w{1,60})' object has no attribute '(\w{1,60})'",
          "Correct {1} in {here}: there is no operator torch.ops.{0}.{1}."),
    rule(r"^AttributeError: '(\w{1,60})' object has no attribute '(\w{1,60})'", _attribute),
    rule(r"leaf Variable that requires grad .* in-place", "Write the result of {here} to a new tensor, not into its operand."),
    rule(r"modified by an inplace operation", "Do not change a tensor in place that backward needs: work on a clone."),
    rule(r"Can't call numpy\(\) on Tensor that requires grad",
          "Compute {here} with torch: numpy has no gradients."),
    rule(r"can't convert (?:cuda|\w+:\d+) device type tensor to numpy", "Compute {here} with torch, on the GPU."),
    rule(r"does not require grad and does not have a grad_fn",
          "Do not detach: compute the output from x and the parameters with autograd."),
    rule(r"view size is not compatible", "Write .reshape(...) instead of .view(...) in {here}."),
    rule(r"Expected all tensors to be on the same device|but got \w+ is on cpu|and weight type \(torch\.[\w.]*Tensor\) "
          r"should", "Create all tensors of {here} on the device of x, and call no .cpu()."),
    rule(r"expected scalar type (\w+) but found (\w+)|should be the same|to have the same dtype",
          "Use one dtype for all tensors of {here}."),
    rule(r"incompatible (?:function|constructor) arguments",
          "Give {here} the arguments that the C++ function declares, by number and type."),
    rule(r"received an invalid combination of arguments", "Correct the arguments in {here}."),
    rule(r"(\w+)\.forward\(\) (?:takes|missing)",
          "Give forward of {0} the arguments of its call in {here}. .apply() passes ctx before them."),
    rule(_ARGUMENTS.pattern, "Call {0} in {here} with the arguments that it declares."),
    rule(r"must match|shapes cannot be multiplied|is invalid for input of size|[Ee]xpected .*channels|size mismatch|"
          r"expected .*[Dd] ?(?:\(|input|tensor)", "Correct the shapes in {here}."),
    rule(r"ninja|^BuildFailed", "Read its log."),
)


def status_of(error: Raised) -> Status:
    """Of a call that raised."""
    if error.type == "OutOfMemoryError" or "can't allocate memory" in error.message or error.type == "MemoryError":
        return Status.OUT_OF_MEMORY
    if said := of_cuda(error):
        return said[0]
    return Status.LAUNCH_FAILED


def advice_for_call(error: Raised) -> str:
    """The same: what to do."""
    if said := of_cuda(error):
        return said[1]
    call = "Accept the same arguments as the reference."
    return advice_for(error, arguments=call, otherwise=call)
