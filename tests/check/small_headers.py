"""Lines at the top of a file with load_inline: headers of torch that take a moment. Torch's own take half a minute a build."""

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
SMALL_HEADERS = f"""import pathlib
pathlib.Path("torch").mkdir()
pathlib.Path("torch/extension.h").write_text({_EXTENSION!r})
pathlib.Path("torch/types.h").touch()
"""
_FOUND = "extra_include_paths=[str(pathlib.Path.cwd())]"


def with_small_headers(text: str) -> str:
    """A file that calls load_inline once, built with them. Its lines move down."""
    found = text.replace("load_inline(name=", f"load_inline({_FOUND}, name=")
    assert found.count(_FOUND) == 1
    return SMALL_HEADERS + found
