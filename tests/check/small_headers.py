"""Lines at the top of a file with load_inline: headers of torch that take a moment. Torch's own take half a minute a build.

What is built with `REAL` can be called: its tensors are torch's."""

_EXTENSION = r"""#pragma once
#include <initializer_list>
#include <pybind11/pybind11.h>
namespace at {
struct Tensor {
  int size(int) const { return 1; }
  int options() const { return 0; }
  template <class T> T* data_ptr() const { return nullptr; }
};
}  // namespace at
namespace torch {
using at::Tensor;
inline Tensor empty(std::initializer_list<int>, int) { return {}; }
template <class F> F* wrap_pybind_function(F* f) { return f; }
}  // namespace torch
"""
REAL = r"""#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>
namespace torch {
using at::empty, at::Tensor;
template <class F> F* wrap_pybind_function(F* f) { return f; }
}  // namespace torch
"""
_FOUND = "extra_include_paths=[str(pathlib.Path.cwd())]"


def with_small_headers(text: str, extension: str = _EXTENSION) -> str:
    """A file that calls load_inline once, built with them. Its lines move down."""
    found = text.replace("load_inline(name=", f"load_inline({_FOUND}, name=")
    assert found.count(_FOUND) == 1
    return _lines(extension) + found


def _lines(extension: str) -> str:
    return f"""import pathlib
pathlib.Path("torch").mkdir()
pathlib.Path("torch/extension.h").write_text({extension!r})
pathlib.Path("torch/types.h").touch()
"""


SMALL_HEADERS = _lines(_EXTENSION)
