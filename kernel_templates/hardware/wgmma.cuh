// Shapes of wgmma (sm_90a): one struct for each number of columns. They follow one pattern; only the register lists
// differ.
#pragma once

#include "contract/problem.cuh"
#include "hardware/mbarrier.cuh"
#include "contract/scalar.cuh"

#ifndef __CUDACPU__

// d[i] is register i of the accumulators: its list of names for the text, its list of operands for the compiler.
#define KW_NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KW_NAMES_1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define KW_NAMES_2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define KW_NAMES_3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define KW_NAMES_4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define KW_NAMES_5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define KW_NAMES_6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define KW_NAMES_7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define KW_NAMES_8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define KW_NAMES_9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define KW_NAMES_10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define KW_NAMES_11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define KW_NAMES_12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define KW_NAMES_13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define KW_NAMES_14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define KW_NAMES_15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define KW_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KW_D8(i) KW_D4(i), KW_D4(i + 4)
#define KW_D32(i) KW_D8(i), KW_D8(i + 8), KW_D8(i + 16), KW_D8(i + 24)

// A and B are descriptors of shared memory, both with K running fastest; `keep` 0 starts the sum anew.
#define KW_WGMMA_TEXT(columns, depth, types, names, a, b, keep, tail)                                       \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k" #depth     \
  ".f32." types " {" names "}, %" #a ", %" #b ", p, 1, 1" tail ";\n}\n"

#define KW_WGMMA_SHAPE(columns, names, a_place, b_place, keep_place, ...)                                            \
  template <>                                                                                                        \
  struct WgmmaShape<columns> {                                                                                       \
    template <Precision precision>                                                                                   \
    static __device__ __forceinline__ void issue(float (&d)[columns / 2], unsigned long long a, unsigned long long b, \
                                                 int keep) {                                                         \
      if constexpr (precision == Precision::fp16) {                                                                  \
        asm volatile(KW_WGMMA_TEXT(columns, 16, "f16.f16", names, a_place, b_place, keep_place, ", 0, 0")            \
                     : __VA_ARGS__                                                                                   \
                     : "l"(a), "l"(b), "r"(keep));                                                                   \
      } else if constexpr (precision == Precision::bf16) {                                                           \
        asm volatile(KW_WGMMA_TEXT(columns, 16, "bf16.bf16", names, a_place, b_place, keep_place, ", 0, 0")          \
                     : __VA_ARGS__                                                                                   \
                     : "l"(a), "l"(b), "r"(keep));                                                                   \
      } else {                                                                                                       \
        asm volatile(KW_WGMMA_TEXT(columns, 8, "tf32.tf32", names, a_place, b_place, keep_place, "")                 \
                     : __VA_ARGS__                                                                                   \
                     : "l"(a), "l"(b), "r"(keep));                                                                   \
      }                                                                                                              \
    }                                                                                                                \
  };

template <int columns>
struct WgmmaShape;

KW_WGMMA_SHAPE(8, "%0,%1,%2,%3", 4, 5, 6, KW_D4(0))
KW_WGMMA_SHAPE(16, KW_NAMES_0, 8, 9, 10, KW_D8(0))
KW_WGMMA_SHAPE(24, KW_NAMES_0 "," "%8,%9,%10,%11", 12, 13, 14, KW_D8(0), KW_D4(8))
KW_WGMMA_SHAPE(32, KW_NAMES_0 "," KW_NAMES_1, 16, 17, 18, KW_D8(0), KW_D8(8))
KW_WGMMA_SHAPE(48, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2, 24, 25, 26, KW_D8(0), KW_D8(8), KW_D8(16))
KW_WGMMA_SHAPE(64, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3, 32, 33, 34, KW_D32(0))
KW_WGMMA_SHAPE(96, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3 "," KW_NAMES_4 "," KW_NAMES_5, 48, 49, 50,
               KW_D32(0), KW_D8(32), KW_D8(40))
KW_WGMMA_SHAPE(128, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3 "," KW_NAMES_4 "," KW_NAMES_5 ","
               KW_NAMES_6 "," KW_NAMES_7, 64, 65, 66, KW_D32(0), KW_D32(32))
KW_WGMMA_SHAPE(256, KW_NAMES_0 "," KW_NAMES_1 "," KW_NAMES_2 "," KW_NAMES_3 "," KW_NAMES_4 "," KW_NAMES_5 ","
               KW_NAMES_6 "," KW_NAMES_7 "," KW_NAMES_8 "," KW_NAMES_9 "," KW_NAMES_10 "," KW_NAMES_11 "," KW_NAMES_12
               "," KW_NAMES_13 "," KW_NAMES_14 "," KW_NAMES_15, 128, 129, 130, KW_D32(0), KW_D32(32), KW_D32(64),
               KW_D32(96))

#undef KW_WGMMA_SHAPE
#undef KW_WGMMA_TEXT
#endif

// Tensor-core products of a warpgroup (wgmma, sm_90a): 128 threads multiply two operands that lie in shared memory.
// In a build for another architecture the instructions do not exist; there the kernel stops at the first of them.

// The descriptor of an operand whose rows hold the summed index K contiguously, without swizzle. Eight rows of 16
// bytes, one after the other, are a core matrix. `k_step` bytes lie between the two core matrices along K, `row_step`
// bytes between groups of eight rows. The start is any multiple of 16: one row further is 16 bytes further.
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned start, unsigned k_step, unsigned row_step) {
  return static_cast<unsigned long long>((start & 0x3FFFFu) >> 4) |
         static_cast<unsigned long long>(k_step >> 4) << 16 | static_cast<unsigned long long>(row_step >> 4) << 32;
}

#ifdef __CUDACPU__
// The emulator's versions decode the same descriptors and read the same bytes.
namespace ptx_emulation {

// The two rows of A that a thread's elements of D need, where A comes from registers of its quad.
struct RegisterRows {
  float value[2][8];
};

// The products that one thread has issued and not waited for yet.
struct PendingProducts {
  struct Product {
    float* d;
    unsigned long long a, b;
    int columns, keep, element_bytes;
    float (*load)(const char*);
    long group;
    bool from_registers;
    RegisterRows own;
  };
  Product* products;
  int count, capacity;
  long committed;

  void clear() {
    count = 0;
    committed = 0;
  }
  void release() { free(products); }

  void add(const Product& product) {
    if (count == capacity) {
      capacity = capacity == 0 ? 64 : 2 * capacity;
      products = static_cast<Product*>(realloc(products, capacity * sizeof(Product)));
    }
    products[count++] = product;
  }

  void finish_all_but(int pending) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Product product = products[i];
      if (product.group >= committed - pending) {
        products[kept++] = product;
      } else {
        multiply(product);
      }
    }
    count = kept;
  }

  // The core matrix that holds row `row` from K index 0 on, or from the half of K behind it.
  static const char* row_at(unsigned long long descriptor, int row, int half) {
    const unsigned start = (descriptor & 0x3FFF) << 4, k_step = (descriptor >> 16 & 0x3FFF) << 4;
    const unsigned row_step = (descriptor >> 32 & 0x3FFF) << 4;
    return shared_bytes(start + half * k_step + row / 8 * row_step + row % 8 * 16, 16, "wgmma");
  }

  // This thread's own elements of D: rows 16 warp + lane / 4 and 8 further on, two columns of each eight.
  static void multiply(const Product& p) {
    const int thread = cuda_on_cpu::current->thread->id % 128, lane = thread % 32;
    const int per_half = 16 / p.element_bytes;
    for (int i = 0; i < p.columns / 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = p.keep != 0 ? p.d[i] : 0.0;
      for (int half = 0; half < 2; ++half) {
        const char *a = p.from_registers ? nullptr : row_at(p.a, row, half), *b = row_at(p.b, column, half);
        for (int k = 0; k < per_half; ++k) {
          const float left = p.from_registers ? p.own.value[i / 2 % 2][4 * half + k] : p.load(a + k * p.element_bytes);
          sum += static_cast<double>(left) * p.load(b + k * p.element_bytes);
        }
      }
      p.d[i] = static_cast<float>(sum);
    }
  }
};

// Stops the launch unless all lanes of a warp ask for the same product.
inline void agree(unsigned long long a, unsigned long long b, int keep) {
  struct Asked {
    unsigned long long a, b;
    int keep;
  } mine{a, b, keep};
  cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned present) {
    const auto& first = *static_cast<Asked*>(arguments[__builtin_ctz(present)]);
    for (int lane = 0; lane < 32; ++lane) {
      const auto* other = static_cast<Asked*>(arguments[lane]);
      if (other == nullptr || other->a != first.a || other->b != first.b || other->keep != first.keep) {
        cuda_on_cpu::stop(cudaErrorLaunchFailure, "wgmma: lane %d is missing or asks for another product", lane);
      }
    }
  });
}

// Each lane's fragment of A (wgmma_registers.cuh) becomes the two rows of its quad.
inline void gather_rows(const float (&a)[4], RegisterRows& rows) {
  struct Given {
    const float* a;
    RegisterRows* rows;
  } mine{a, &rows};
  cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 16; ++i) {
        const auto* from = static_cast<Given*>(arguments[lane / 4 * 4 + i % 4]);
        static_cast<Given*>(arguments[lane])->rows->value[i / 8][i % 8] =
            __uint_as_float(__float_as_uint(from->a[i / 8 + i % 8 / 4 * 2]) & 0xFFFFE000u);
      }
  });
}

}  // namespace ptx_emulation
#endif

// A whole warpgroup gives registers of its threads back, or takes registers that others have given back. The counts are
// multiples of 8.
template <int registers>
__device__ __forceinline__ void give_registers() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
__device__ __forceinline__ void take_registers() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

// Call it before the first product that uses registers or shared memory written by ordinary instructions.
__device__ __forceinline__ void wgmma_fence() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Call it between writes to shared memory and products or tensor stores that read them, before their barrier.
__device__ __forceinline__ void products_see_writes() {
#if !defined(__CUDACPU__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Closes a group: the products since the last commit.
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::PendingProducts>().committed;
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most the latest `pending` groups are still under way; only then may their operands be overwritten.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::PendingProducts>().finish_all_but(pending);
  __syncwarp();  // no lane returns before the products of all lanes are done
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}

// Call it after wgmma_wait(): the compiler must not move a use of d before the wait, when the tensor cores still use
// the registers.
template <int registers>
__device__ __forceinline__ void wgmma_own(float (&d)[registers]) {
#ifndef __CUDACPU__
#pragma unroll
  for (int i = 0; i < registers; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

// d = a * b, plus d unless `keep` is 0: a has 64 rows, b has `columns`, both 32 bytes of K (8 TF32 or 16 half-size
// values). Asynchronous: d belongs to the tensor cores until wgmma_wait(). With row = lane / 4 a thread holds
//   d[4 i], d[4 i + 1]: row 16 warp + row, columns 8 i + 2 (lane % 4) and the next;  d[4 i + 2], d[4 i + 3]: row + 8
// PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma.mma_async.
template <Precision precision, class Scalar, int columns, int registers>
__device__ __forceinline__ void wgmma(float (&d)[registers], unsigned long long a, unsigned long long b, int keep) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
#ifdef __CUDACPU__
  ptx_emulation::agree(a, b, keep);
  auto load = [](const char* at) -> float {
    const float value = widen(*reinterpret_cast<const Scalar*>(at));
    return sizeof(Scalar) == 4 ? __uint_as_float(__float_as_uint(value) & 0xFFFFE000u) : value;
  };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::PendingProducts>();
  mine.add({d, a, b, columns, keep, static_cast<int>(sizeof(Scalar)), load, mine.committed});
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WgmmaShape<columns>::template issue<precision>(d, a, b, keep);
#else
  __trap();
#endif
}
