// Tensor-core products of a warpgroup (wgmma, sm_90a) whose first operand comes from registers: any precision, 8 to 256
// columns.
#pragma once
#include "hardware/ptx.cuh"
#include "hardware/wgmma.cuh"
#include "hardware/wgmma_more_shapes.cuh"

#ifndef __CUDACPU__
#define KW_FRAGMENT_ISSUE(columns, depth, types, names, p0, p1, p2, p3, b_place, tail, ...)                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k" #depth ".f32."    \
               types " {" names "}, {%" #p0 ",%" #p1 ",%" #p2 ",%" #p3 "}, %" #b_place ", p, 1, 1" tail ";\n}\n"          \
               : __VA_ARGS__                                                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define KW_FRAGMENT_SHAPE(columns, quads, p0, p1, p2, p3, b_place)                                                        \
  template <>                                                                                                             \
  struct FragmentShape<columns> {                                                                                         \
    template <Precision precision>                                                                                        \
    static __device__ __forceinline__ void issue(float (&d)[columns / 2], const unsigned (&a)[4], unsigned long long b) { \
      if constexpr (precision == Precision::fp16) {                                                                       \
        KW_FRAGMENT_ISSUE(columns, 16, "f16.f16", KW_TEXT_##quads, p0, p1, p2, p3, b_place, ", 0", KW_SUMS_##quads);      \
      } else if constexpr (precision == Precision::bf16) {                                                                \
        KW_FRAGMENT_ISSUE(columns, 16, "bf16.bf16", KW_TEXT_##quads, p0, p1, p2, p3, b_place, ", 0", KW_SUMS_##quads);    \
      } else {                                                                                                            \
        KW_FRAGMENT_ISSUE(columns, 8, "tf32.tf32", KW_TEXT_##quads, p0, p1, p2, p3, b_place, "", KW_SUMS_##quads);        \
      }                                                                                                                   \
    }                                                                                                                     \
  };

#define KW_TEXT_32 KW_TEXT_31 "," "%124,%125,%126,%127"
#define KW_SUMS_32 KW_SUMS_31, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

template <int columns>
struct FragmentShape;

KW_FRAGMENT_SHAPE(8, 1, 4, 5, 6, 7, 8)
KW_FRAGMENT_SHAPE(16, 2, 8, 9, 10, 11, 12)
KW_FRAGMENT_SHAPE(24, 3, 12, 13, 14, 15, 16)
KW_FRAGMENT_SHAPE(32, 4, 16, 17, 18, 19, 20)
KW_FRAGMENT_SHAPE(40, 5, 20, 21, 22, 23, 24)
KW_FRAGMENT_SHAPE(48, 6, 24, 25, 26, 27, 28)
KW_FRAGMENT_SHAPE(56, 7, 28, 29, 30, 31, 32)
KW_FRAGMENT_SHAPE(64, 8, 32, 33, 34, 35, 36)
KW_FRAGMENT_SHAPE(72, 9, 36, 37, 38, 39, 40)
KW_FRAGMENT_SHAPE(80, 10, 40, 41, 42, 43, 44)
KW_FRAGMENT_SHAPE(88, 11, 44, 45, 46, 47, 48)
KW_FRAGMENT_SHAPE(96, 12, 48, 49, 50, 51, 52)
KW_FRAGMENT_SHAPE(104, 13, 52, 53, 54, 55, 56)
KW_FRAGMENT_SHAPE(112, 14, 56, 57, 58, 59, 60)
KW_FRAGMENT_SHAPE(120, 15, 60, 61, 62, 63, 64)
KW_FRAGMENT_SHAPE(128, 16, 64, 65, 66, 67, 68)
KW_FRAGMENT_SHAPE(136, 17, 68, 69, 70, 71, 72)
KW_FRAGMENT_SHAPE(144, 18, 72, 73, 74, 75, 76)
KW_FRAGMENT_SHAPE(152, 19, 76, 77, 78, 79, 80)
KW_FRAGMENT_SHAPE(160, 20, 80, 81, 82, 83, 84)
KW_FRAGMENT_SHAPE(168, 21, 84, 85, 86, 87, 88)
KW_FRAGMENT_SHAPE(176, 22, 88, 89, 90, 91, 92)
KW_FRAGMENT_SHAPE(184, 23, 92, 93, 94, 95, 96)
KW_FRAGMENT_SHAPE(192, 24, 96, 97, 98, 99, 100)
KW_FRAGMENT_SHAPE(200, 25, 100, 101, 102, 103, 104)
KW_FRAGMENT_SHAPE(208, 26, 104, 105, 106, 107, 108)
KW_FRAGMENT_SHAPE(216, 27, 108, 109, 110, 111, 112)
KW_FRAGMENT_SHAPE(224, 28, 112, 113, 114, 115, 116)
KW_FRAGMENT_SHAPE(232, 29, 116, 117, 118, 119, 120)
KW_FRAGMENT_SHAPE(240, 30, 120, 121, 122, 123, 124)
KW_FRAGMENT_SHAPE(248, 31, 124, 125, 126, 127, 128)
KW_FRAGMENT_SHAPE(256, 32, 128, 129, 130, 131, 132)

#undef KW_FRAGMENT_SHAPE
#undef KW_FRAGMENT_ISSUE
#endif

#ifdef __CUDACPU__
namespace ptx_emulation {

// The products of fragments that one thread has issued and not waited for yet.
struct PendingFragments {
  struct Product {
    float* d;
    const unsigned* a;    // where the lane keeps its fragment: it must not change before the wait
    unsigned given[4];    // what it held
    unsigned word[2][8];  // the two rows of A that this lane's elements of D need
    unsigned long long b;
    int columns, element_bytes;
    float (*load)(const char*);
    long group;
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
  static void multiply(const Product& p) {
    if (memcmp(p.a, p.given, sizeof(p.given)) != 0)
      cuda_on_cpu::stop(cudaErrorLaunchFailure, "wgmma: a fragment was overwritten before its product was waited for");
    const int lane = cuda_on_cpu::current->thread->id % 32, per_half = 16 / p.element_bytes;
    for (int i = 0; i < p.columns / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = p.d[i];
      for (int half = 0; half < 2; ++half) {
        const char* const a = reinterpret_cast<const char*>(p.word[i / 2 % 2] + 4 * half);
        const char* const b = PendingProducts::row_at(p.b, column, half);
        for (int k = 0; k < per_half; ++k)
          sum += static_cast<double>(p.load(a + k * p.element_bytes)) * p.load(b + k * p.element_bytes);
      }
      p.d[i] = static_cast<float>(sum);
    }
  }

  // Each lane's fragment becomes the two rows of its quad.
  static void gather(Product& mine) {
    cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned) {
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 16; ++i)
          static_cast<Product*>(arguments[lane])->word[i / 8][i % 8] =
              static_cast<Product*>(arguments[lane / 4 * 4 + i % 4])->given[i / 8 + i % 8 / 4 * 2];
    });
  }
};

}  // namespace ptx_emulation
#endif

// d += a * b, as wgmma(); b by its descriptor. A lane's part of a, with row = lane / 4 of the warp's 16 rows and word =
// lane % 4 of the 32 bytes of K (a word holds one TF32 value, or two neighbours of 16 bits):
//   a[0]: (row, word)  a[1]: (row + 8, word)  a[2]: (row, word + 4)  a[3]: (row + 8, word + 4)
// Asynchronous: a, too, belongs to the tensor cores until fragment_wait(). ptxas keeps other values out of its registers only
// as far as the next branch. So wait for all products before a branch.
template <Precision precision, class Scalar, int columns, int registers>
__device__ __forceinline__ void wgmma_of_fragment(float (&d)[registers], const unsigned (&a)[4], unsigned long long b) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
#ifdef __CUDACPU__
  ptx_emulation::agree(0, b, 1);
  auto load = [](const char* at) -> float {
    const float value = widen(*reinterpret_cast<const Scalar*>(at));
    return sizeof(Scalar) == 4 ? __uint_as_float(__float_as_uint(value) & 0xFFFFE000u) : value;
  };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::PendingFragments>();
  ptx_emulation::PendingFragments::Product product = {
      d, a, {a[0], a[1], a[2], a[3]}, {}, b, columns, int(sizeof(Scalar)), load, mine.committed};
  ptx_emulation::PendingFragments::gather(product);
  mine.add(product);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  FragmentShape<columns>::template issue<precision>(d, a, b);
#else
  __trap();
#endif
}

// Close a group of such products, and wait until at most the latest `pending` groups are under way.
__device__ __forceinline__ void fragment_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::PendingFragments>().committed;
#else
  wgmma_commit();
#endif
}

template <int pending>
__device__ __forceinline__ void fragment_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::PendingFragments>().finish_all_but(pending);
  __syncwarp();  // no lane returns before the products of all lanes are done
#else
  wgmma_wait<pending>();
#endif
}

// Arrives at the mbarrier when all earlier cp.async of this thread have arrived. It does not wait for them.
__device__ __forceinline__ void cp_async_arrive(unsigned barrier) {
#ifdef __CUDACPU__
  cp_async_commit();
  cp_async_wait<0>();
  mbarrier_arrive(barrier);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

// Four 8 x 8 matrices of 16-bit values from shared memory, transposed. Lane l points at row l % 8 of matrix l / 8: 16 aligned
// bytes. Word i of a lane has column lane / 4 of matrix i: its rows 2 (lane % 4) and the next.
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const char* row) {
#ifdef __CUDACPU__
  if (reinterpret_cast<size_t>(row) % 16 != 0)
    cuda_on_cpu::stop(cudaErrorMisalignedAddress, "load_transposed: an address is not a multiple of 16");
  struct Given {
    const char* row;
    unsigned* to;
  } mine{row, to};
  cuda_on_cpu::collective(~0u, &mine, [](void* const* arguments, unsigned) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 8; ++i) {
        const char* const from = static_cast<Given*>(arguments[i / 2 * 8 + lane % 4 * 2 + i % 2])->row;
        unsigned& word = static_cast<Given*>(arguments[lane])->to[i / 2];
        const unsigned half = reinterpret_cast<const unsigned short*>(from)[lane / 4];
        word = i % 2 == 0 ? half : word | half << 16;
      }
  });
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
#endif
}
