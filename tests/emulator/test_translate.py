"""The translator: what changes, what does not, and that every line stays where it was."""

import pytest

from workbench.measure.emulator import translate

PROLOGUE = '#include "cuda_on_cpu.h"\n#line 1\n'


def body(source: str) -> str:
    text = translate(source)
    assert text.startswith(PROLOGUE)
    text = text.removeprefix(PROLOGUE)
    assert text.count("\n") == source.count("\n"), "a line moved"
    return text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("k<<<1, 2>>>(x);", "cuda_on_cpu::launch(k, 1, 2)(x);"),
        ("k<<<g, b, smem, stream>>>();", "cuda_on_cpu::launch(k, g, b, smem, stream)();"),
        (
            "if (a<b) k<A, B<C>><<<dim3(1, 2), f(a, b)>>>(x, y);",
            "if (a<b) cuda_on_cpu::launch(k<A, B<C>>, dim3(1, 2), f(a, b))(x, y);",
        ),
        (
            "case 1:ns::S<int>::k<(a > b), 3> <<<1, 2>>> (x);",
            "case 1:cuda_on_cpu::launch(ns::S<int>::k<(a > b), 3> , 1, 2) (x);",
        ),
        ("return (*table[i])<<<1, 2>>>(x);", "return cuda_on_cpu::launch((*table[i]), 1, 2)(x);"),
        (
            "a<1><<<1,\n  2>>>(\n x); b<2><<<3, 4>>>();",
            "cuda_on_cpu::launch(a<1>, 1,\n  2)(\n x); cuda_on_cpu::launch(b<2>, 3, 4)();",
        ),
        ('// k<<<1, 2>>>(x)\n"k<<<1, 2>>>(x)" /* << */', '// k<<<1, 2>>>(x)\n"k<<<1, 2>>>(x)" /* << */'),
        ("k<'\"'><<<1'000, 2>>>(x); // '", "cuda_on_cpu::launch(k<'\"'>, 1'000, 2)(x); // '"),
        ('R"(k<<<1, 2>>>(x)")";', 'R"(k<<<1, 2>>>(x)")";'),
        (
            "#define RUN(k, ...) k<<<1, 2>>>(__VA_ARGS__)",
            "#define RUN(k, ...) cuda_on_cpu::launch(k, 1, 2)(__VA_ARGS__)",
        ),
        ("a <<< b", "a <<< b"),
    ],
)
def test_launches(source: str, expected: str) -> None:
    assert body(source) == expected


@pytest.mark.parametrize(
    ("declared", "kernel", "most"),
    [
        ("__global__ void __launch_bounds__(128) k(T* x)", "k", 128),
        ("__launch_bounds__( 64, 2 ) __global__ void k(T* x)", "k<3>", 64),
        ("#define N 96\n__global__ void __launch_bounds__(N) k(T* x)", "k", 96),
        ("constexpr int kN = 32;\n__global__ void __launch_bounds__(kN) k(T* x)", "k", 32),
        ("__global__ void __launch_bounds__(P::N) k(T* x)", "k", 0),
        ("__global__ void __launch_bounds__(128) other(T* x)", "k", 0),
    ],
)
def test_launch_bounds_that_are_numbers(declared: str, kernel: str, most: int) -> None:
    expected = f"cuda_on_cpu::launch({kernel}, 1, 2){f'.of_most({most})' if most else ''}(x);"
    assert body(f"{declared} {{}}\n{kernel}<<<1, 2>>>(x);") == f"{declared} {{}}\n{expected}"


DEDUCED = "cuda_on_cpu::launch_deduced([&](auto... arguments) {{ {}(arguments...); }}, 1, 2)(x);"


@pytest.mark.parametrize(
    ("declared", "kernel", "deduced"),
    [
        ("template <class T>", "k", True),
        ("template <int n, class T>", "k<3>", True),
        ("template <int n, class T>", "k<3, float>", False),
        ("template <int n, class T = float>", "k<3>", False),
        ("template <class A, template <class, int> class B>", "k<A, B>", False),
        ("", "k", False),
    ],
)
def test_template_arguments_left_to_deduce(declared: str, kernel: str, deduced: bool) -> None:
    header = f"{declared} __global__ void __launch_bounds__(f(1)) k(T* x) {{}}\n"
    expected = DEDUCED.format(kernel) if deduced else f"cuda_on_cpu::launch({kernel}, 1, 2)(x);"
    assert body(f"{header}{kernel}<<<1, 2>>>(x);") == header + expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("extern __shared__ float s[];", "CUDA_ON_CPU_DYNAMIC_SHARED(s, float);"),
        ("extern __shared__ __align__(16) unsigned char s[];", "CUDA_ON_CPU_DYNAMIC_SHARED(s, unsigned char);"),
        ("alignas(16) extern __shared__ float4 s[];", "CUDA_ON_CPU_DYNAMIC_SHARED(s, float4);"),
        (
            "extern __shared__ alignas(sizeof(T)) typename A<B, C>::T s[][8];",
            "CUDA_ON_CPU_DYNAMIC_SHARED(s, typename A<B, C>::T [8]);",
        ),
        ("extern volatile __shared__ int s[];", "CUDA_ON_CPU_DYNAMIC_SHARED(s, volatile int);"),
        (
            "__shared__ float a[2][n < 3 ? 1 : 2], b;",
            "CUDA_ON_CPU_SHARED(a, float[2][n < 3 ? 1 : 2]); CUDA_ON_CPU_SHARED(b, float);",
        ),
        ("static __shared__ Pair<int, 2> p;", "CUDA_ON_CPU_SHARED(p, Pair<int, 2>);"),
        ("__shared__ // why\n float\n a[3]; x", "CUDA_ON_CPU_SHARED(a, float[3]);\n\n x"),
        ("__shared__ struct { int a; } s;", "__shared__ struct { int a; } s;"),
        ("#define S(T) \\\n __shared__ T s[4];", "#define S(T) \\\n __shared__ T s[4];"),
        ("int my__shared__; // __shared__ int a;", "int my__shared__; // __shared__ int a;"),
    ],
)
def test_shared_variables(source: str, expected: str) -> None:
    assert body(source) == expected


def test_noinline_is_replaced_but_not_inside_an_attribute() -> None:
    source = "__device__ __noinline__ int f(); __attribute__((__noinline__)) int g();"
    expected = "__device__ __attribute__((noinline)) int f(); __attribute__((__noinline__)) int g();"
    assert body(source) == expected


def test_the_value_of_a_parameter_s_type() -> None:
    source = "constexpr int a = decltype(x)::value; // decltype(x)::value\nusing T = decltype(x)::value_type;"
    expected = source.replace("= decltype(x)::value;", "= cuda_on_cpu::plain<decltype(x)>::value;")
    assert body(source) == expected


def test_line_directives_stay() -> None:
    source = '#line 7 "real.cu"\nint a;\n#line 30 "other.cuh"\nint b;\n'
    assert body(source) == source
