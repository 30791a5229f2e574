// Stands in for the C library's assert.h: in a kernel a failed assert ends the launch with cudaErrorAssert, as on a
// GPU, and not the process. No include guard: <assert.h> may be included again after NDEBUG has changed.
#include "cuda_on_cpu.h"
#undef assert
#ifdef NDEBUG
#define assert(condition) (static_cast<void>(0))
#else
#define assert(condition) \
  ((condition) ? static_cast<void>(0) : cuda_on_cpu::assertion_failed(#condition, __FILE__, __LINE__))
#endif
