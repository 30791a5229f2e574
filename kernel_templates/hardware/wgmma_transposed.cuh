// Tensor-core products of a warpgroup (wgmma, sm_90a) whose operands hold rows contiguously instead of the summed index: 16-bit
// types only. One index K further is 16 bytes further, so an operand may begin at any K.
#pragma once
#include "hardware/wgmma_more_shapes.cuh"

// matrix_descriptor() describes such an operand, too. A core matrix is 8 rows by 8 indices K: 16 bytes hold one K of eight
// rows, and eight K follow each other. `k_step` bytes lie between two core matrices along K, `row_step` bytes between
// groups of eight rows.

#ifdef __CUDACPU__
namespace ptx_emulation {

// The products of transposed operands that one thread has issued and not waited for yet.
struct TransposedProducts {
  struct Product {
    float* d;
    unsigned long long a, b;
    int columns;
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
  static const char* at(unsigned long long descriptor, int row, int k) {
    const unsigned start = (descriptor & 0x3FFF) << 4, k_step = (descriptor >> 16 & 0x3FFF) << 4;
    const unsigned row_step = (descriptor >> 32 & 0x3FFF) << 4;
    return shared_bytes(start + k / 8 * k_step + row / 8 * row_step + k % 8 * 16, 16, "wgmma") + row % 8 * 2;
  }
  // This thread's own elements of D: rows 16 warp + lane / 4 and 8 further on, two columns of each eight.
  static void multiply(const Product& p) {
    const int thread = cuda_on_cpu::current->thread->id % 128, lane = thread % 32;
    for (int i = 0; i < p.columns / 2; ++i) {
      const int row = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = p.d[i];
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(p.load(at(p.a, row, k))) * p.load(at(p.b, column, k));
      p.d[i] = static_cast<float>(sum);
    }
  }
};

}  // namespace ptx_emulation
#else
#define KW_TEXT_32 KW_TEXT_31 "," "%124,%125,%126,%127"
#define KW_SUMS_32 KW_SUMS_31, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

template <int columns>
struct TransposedShape;

#define KW_TRANSPOSED_ISSUE(columns, types, quads, a_place, b_place)                                              \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" KW_TEXT_##quads "}, %" #a_place \
               ", %" #b_place ", 1, 1, 1, 1, 1;\n"                                                                \
               : KW_SUMS_##quads                                                                                  \
               : "l"(a), "l"(b))
#define KW_TRANSPOSED_SHAPE(columns, quads, a_place, b_place)                                                       \
  template <>                                                                                                       \
  struct TransposedShape<columns> {                                                                                 \
    template <Precision precision>                                                                                  \
    static __device__ __forceinline__ void issue(float (&d)[columns / 2], unsigned long long a, unsigned long long b) { \
      if constexpr (precision == Precision::fp16) KW_TRANSPOSED_ISSUE(columns, "f16.f16", quads, a_place, b_place); \
      else KW_TRANSPOSED_ISSUE(columns, "bf16.bf16", quads, a_place, b_place);                                       \
    }                                                                                                               \
  };

KW_TRANSPOSED_SHAPE(8, 1, 4, 5)
KW_TRANSPOSED_SHAPE(16, 2, 8, 9)
KW_TRANSPOSED_SHAPE(24, 3, 12, 13)
KW_TRANSPOSED_SHAPE(32, 4, 16, 17)
KW_TRANSPOSED_SHAPE(40, 5, 20, 21)
KW_TRANSPOSED_SHAPE(48, 6, 24, 25)
KW_TRANSPOSED_SHAPE(56, 7, 28, 29)
KW_TRANSPOSED_SHAPE(64, 8, 32, 33)
KW_TRANSPOSED_SHAPE(72, 9, 36, 37)
KW_TRANSPOSED_SHAPE(80, 10, 40, 41)
KW_TRANSPOSED_SHAPE(88, 11, 44, 45)
KW_TRANSPOSED_SHAPE(96, 12, 48, 49)
KW_TRANSPOSED_SHAPE(104, 13, 52, 53)
KW_TRANSPOSED_SHAPE(112, 14, 56, 57)
KW_TRANSPOSED_SHAPE(120, 15, 60, 61)
KW_TRANSPOSED_SHAPE(128, 16, 64, 65)
KW_TRANSPOSED_SHAPE(136, 17, 68, 69)
KW_TRANSPOSED_SHAPE(144, 18, 72, 73)
KW_TRANSPOSED_SHAPE(152, 19, 76, 77)
KW_TRANSPOSED_SHAPE(160, 20, 80, 81)
KW_TRANSPOSED_SHAPE(168, 21, 84, 85)
KW_TRANSPOSED_SHAPE(176, 22, 88, 89)
KW_TRANSPOSED_SHAPE(184, 23, 92, 93)
KW_TRANSPOSED_SHAPE(192, 24, 96, 97)
KW_TRANSPOSED_SHAPE(200, 25, 100, 101)
KW_TRANSPOSED_SHAPE(208, 26, 104, 105)
KW_TRANSPOSED_SHAPE(216, 27, 108, 109)
KW_TRANSPOSED_SHAPE(224, 28, 112, 113)
KW_TRANSPOSED_SHAPE(232, 29, 116, 117)
KW_TRANSPOSED_SHAPE(240, 30, 120, 121)
KW_TRANSPOSED_SHAPE(248, 31, 124, 125)
KW_TRANSPOSED_SHAPE(256, 32, 128, 129)

#undef KW_TRANSPOSED_SHAPE
#undef KW_TRANSPOSED_ISSUE
#endif

// d += a * b, of 64 rows and `columns` columns, over 16 indices K. Asynchronous, as wgmma(): commit and wait with
// transposed_commit() and transposed_wait().
template <Precision precision, class Scalar, int columns, int registers>
__device__ __forceinline__ void wgmma_transposed(float (&d)[registers], unsigned long long a, unsigned long long b) {
  static_assert(registers * 2 == columns, "a thread holds 64 / 128 of the columns of D");
  static_assert(sizeof(Scalar) == 2, "rows of 16-bit types alone can be contiguous");
#ifdef __CUDACPU__
  ptx_emulation::agree(a, b, 1);
  auto load = [](const char* at) -> float { return widen(*reinterpret_cast<const Scalar*>(at)); };
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::TransposedProducts>();
  mine.add({d, a, b, columns, load, mine.committed});
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  TransposedShape<columns>::template issue<precision>(d, a, b);
#else
  __trap();
#endif
}

__device__ __forceinline__ void transposed_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::TransposedProducts>().committed;
#else
  wgmma_commit();
#endif
}

template <int pending>
__device__ __forceinline__ void transposed_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::TransposedProducts>().finish_all_but(pending);
  __syncwarp();  // no lane returns before the products of all lanes are done
#else
  wgmma_wait<pending>();
#endif
}
