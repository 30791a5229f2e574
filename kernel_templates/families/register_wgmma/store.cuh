// How register_wgmma stores sums if the stride along W is a power of two and every result has a tap (plan.cuh: ORDERS). Others
// are stored by gather_store().
//
// A warpgroup puts the sums of 64 positions and some channels (a piece) into shared memory, in the order of the result. If a
// row of positions is whole boxes, the copy engine stores them while the warpgroup goes on (BoxPlaces). The threads store other
// rows that are aligned to 16, 8 or 4 bytes (VectorPlaces).
#pragma once
#include "families/persistent_wgmma/gather_store.cuh"
#include "families/register_wgmma/plan.cuh"
#include "hardware/warps_meet.cuh"

// 128, 64 or 32: the width of a box. 16, 8 or 4: the bytes that a thread stores at once. 0: gather_store().
template <class P>
int how_to_store(SourceRowsArguments<typename P::Scalar>& a, long long batch) {
  if (!P::ORDERS || a.result_w % P::RESULTS != 0) return 0;
  const long long row = 1LL * a.result_w * P::SIZE, channel = a.result_volume * P::SIZE, pitch = 1LL * a.pitch.divisor * P::OF_POSITION;
  int aligned = 16;
  while (aligned > 2 && (row % aligned != 0 || size_t(a.result) % aligned != 0)) aligned /= 2;
  // A box must not reach into the next row: it would be stored twice, the second time from a negative place on.
  int width = 128;
  while (width > 16 && pitch % width != 0) width /= 2;
  if (aligned == 16 && width > 16 && channel * P::M < 1LL << 40 &&
      make_tensor_map(a.boxes, a.result, {a.result_w, 1LL * a.result_d * a.result_h, P::M, batch * P::GROUPS},
                      {P::SIZE, row, channel, channel * P::M}, width, P::STORED) == cudaSuccess)
    return width;
  return aligned >= 4 ? aligned : 0;
}

// A word has two channels of a position. Lanes of even positions get it and the next one of the first eight, others of the last.
template <class Scalar>
__device__ __forceinline__ void exchange_halves(const Pack<Scalar, 2> (&words)[2], bool odd, Pack<Scalar, 2> (&channels)[2]) {
  const unsigned low = *reinterpret_cast<const unsigned*>(&words[0]), high = *reinterpret_cast<const unsigned*>(&words[1]);
  const unsigned other = __shfl_xor_sync(~0u, odd ? low : high, 4), first = odd ? other : low, second = odd ? high : other;
  *reinterpret_cast<unsigned*>(&channels[0]) = __byte_perm(first, second, 0x5410);
  *reinterpret_cast<unsigned*>(&channels[1]) = __byte_perm(first, second, 0x7632);
}

// A piece is [row residue][box][channel][WIDTH bytes]; hardware/tensor_store.cuh has the order of the bytes. Sum i of 8 columns is
// sum(class, eight, i); `eight` counts eights of channels of the piece.
template <class P, int WIDTH, class Sum>
__device__ __forceinline__ void write_piece(char* piece, const Sum& sum) {
  using Scalar = typename P::Scalar;
  constexpr bool PAIRS = P::OF_POSITION == 2;
  constexpr int BOX = P::STORED * WIDTH, PER_BOX = WIDTH / P::OF_POSITION, V = P::OF_POSITION < 16 ? P::RESULTS : 16 / P::SIZE;
  const int lane = threadIdx.x % 32, position = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const bool odd = lane / 4 % 2;
  int own[4];  // where the lane's results lie: two channels of a position, and of the one 8 further
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int channel = lane % 4 * 2 + i % 2, here = PAIRS ? (odd ? position + 7 : position) : position + i / 2 * 8;
    own[i] = here / PER_BOX * BOX + channel * WIDTH + box_byte(WIDTH, channel, here % PER_BOX * P::OF_POSITION);
  }
  const_loop<0, P::STORED / 8 * P::MERGED>([&](auto which) {
    constexpr int MERGED = decltype(which)::value % P::MERGED, EIGHT = decltype(which)::value / P::MERGED;
    char* const to = piece + MERGED * (64 * P::OF_POSITION * P::STORED) + EIGHT * 8 * WIDTH;
    const auto value = [&](auto r, int i) {
      constexpr int SLOT = P::slot_of(decltype(r)::value);
      return narrow<Scalar>(sum(Constant<SLOT * P::MERGED + MERGED>{}, Constant<EIGHT>{}, i));
    };
    if constexpr (PAIRS) {
      Pack<Scalar, 2> words[2], channels[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i / 2].value[i % 2] = value(Constant<0>{}, i);
      exchange_halves(words, odd, channels);
#pragma unroll
      for (int i = 0; i < 2; ++i) *reinterpret_cast<Pack<Scalar, 2>*>(to + own[i]) = channels[i];
    } else {
      const_loop<0, 4 * (P::RESULTS / V)>([&](auto part) {
        constexpr int I = decltype(part)::value % 4, R = decltype(part)::value / 4 * V;
        Pack<Scalar, V> values;
        const_loop<0, V>([&](auto r) { values.value[decltype(r)::value] = value(Constant<R + decltype(r)::value>{}, I); });
        *reinterpret_cast<Pack<Scalar, V>*>(to + (own[I] ^ R * P::SIZE)) = values;
      });
    }
  });
}

// Where the boxes of a block of 64 positions lie in the result. Each warp has every fourth.
template <class P, int WIDTH>
struct BoxPlaces {
  static constexpr int OF_RESIDUE = 64 * P::OF_POSITION / WIDTH, ALL = OF_RESIDUE * P::MERGED, MOST = ceil_div(ALL, 4);
  int w[MOST], row[MOST], n[MOST];  // n < 0: no box

  __device__ __forceinline__ BoxPlaces(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item, int block,
                                       int warp) {
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
      const int box = warp % 4 + i * 4, residue = item.row_group * P::MERGED + box / OF_RESIDUE;
      const int first = warp / 4 * P::ROWS + block * 64 + box % OF_RESIDUE * (64 / OF_RESIDUE);
      const GatherStep step = gather_step(a, item.row0, item.step0, first);
      const GatherRow place(a, step.row);
      const int d = P::FORWARD ? place.d * P::SD + residue / P::SH : place.d;
      const int h = P::FORWARD ? place.h * P::SH + residue % P::SH : place.h;
      const bool exists = box < ALL && step.row < a.rows && step.w < a.steps_w && d < a.result_d && h < a.result_h;
      w[i] = step.w * P::RESULTS, row[i] = d * a.result_h + h, n[i] = exists ? place.n * P::GROUPS + item.group : -1;
    }
  }
  // `channel`: the first of the piece.
  __device__ __forceinline__ void store(const SourceRowsArguments<typename P::Scalar>& a, const char* piece, int channel,
                                        int warp) const {
#pragma unroll
    for (int i = 0; i < MOST; ++i)
      if (n[i] >= 0)
        tensor_store(a.boxes, shared_address(piece) + (warp % 4 + i * 4) * (P::STORED * WIDTH), w[i], row[i], channel, n[i]);
    tensor_store_commit();
  }
};

// Where a thread's vectors lie in the result: N bytes at the same place of every AT_ONCE-th channel, or PLACES such
// vectors of every channel. Some threads have none, or one less, if OF_CHANNEL is no power of two.
template <class P, int N>
struct VectorPlaces {
  static constexpr int OF_RESIDUE = 64 * P::OF_POSITION / N, OF_CHANNEL = OF_RESIDUE * P::MERGED;
  static constexpr int PLACES = ceil_div(OF_CHANNEL, 128), AT_ONCE = OF_CHANNEL < 128 ? 128 / OF_CHANNEL : 1;
  typename P::Scalar* to[PLACES];  // in the thread's first channel
  bool exists[PLACES];

  __device__ __forceinline__ VectorPlaces(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item, int block,
                                          int warp) {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < PLACES; ++i) {
      const int vector = thread % OF_CHANNEL + i * 128, result = vector % OF_RESIDUE * N / P::SIZE;
      const int residue = item.row_group * P::MERGED + vector / OF_RESIDUE;
      const GatherTarget t = gather_target<P>(a, item, warp / 4 * P::ROWS + block * 64 + result / P::RESULTS);
      const int d = t.d + (P::FORWARD ? residue / P::SH : 0), h = t.h + (P::FORWARD ? residue % P::SH : 0);
      exists[i] = d < a.result_d && h < a.result_h;
      if constexpr (128 * PLACES != AT_ONCE * OF_CHANNEL)
        exists[i] = exists[i] && vector < OF_CHANNEL && thread / OF_CHANNEL < AT_ONCE;
      to[i] = a.result + t.at + (item.channel + thread / OF_CHANNEL) * a.result_volume + (1LL * d * a.result_h + h) * a.result_w +
              t.w + result % P::RESULTS;
    }
  }
  // `to` then points to the channel behind the piece, so pieces are stored in the order of their channels.
  __device__ __forceinline__ void store(const SourceRowsArguments<typename P::Scalar>& a, const char* piece, int channel, int) {
    using Vector = Pack<typename P::Scalar, N / P::SIZE>;
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int next = 0; next < P::STORED; next += AT_ONCE)
#pragma unroll
      for (int i = 0; i < PLACES; ++i) {
        const int here = next + thread / OF_CHANNEL, byte = (thread % OF_CHANNEL + i * 128) * N;
        const char* const from = piece + byte / 128 * (P::STORED * 128) + here * 128 + box_byte(128, here, byte % 128);
        if (exists[i] && (P::STORED % AT_ONCE == 0 || here < P::STORED) && channel + here < P::M)
          gather_store_run(to[i], *reinterpret_cast<const Vector*>(from));
        to[i] += (next + AT_ONCE < P::STORED ? AT_ONCE : P::STORED - next) * a.result_volume;
      }
  }
};

// Places: BoxPlaces<P, WIDTH>, or VectorPlaces with a WIDTH of 128.
template <class P, int WIDTH, class Places, class Sum>
__device__ __forceinline__ void store_pieces(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item, char* room,
                                             const Sum& sum) {
  constexpr int OF_BLOCK = P::CT / P::STORED, PIECES = P::BLOCKS * OF_BLOCK, BYTES = P::PIECE / 8 * P::STORED;
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), barrier = 1 + warp / 4;
  room += warp / 4 * (P::ROOM_BYTES / 2);
  const_loop<0, P::BLOCKS>([&](auto block) {
    constexpr int BLOCK = decltype(block)::value;
    Places places(a, item, BLOCK, warp);
    const_loop<0, OF_BLOCK>([&](auto group) {
      constexpr int GROUP = decltype(group)::value, NUMBER = BLOCK * OF_BLOCK + GROUP;
      char* const piece = room + (PIECES == 1 ? 0 : NUMBER % 2 * BYTES);
      tensor_store_wait<PIECES % 2 == 0 ? 1 : 0>();
      warps_meet<128>(barrier);  // the piece that was here has been read
      write_piece<P, WIDTH>(piece, [&](auto which, auto eight, int i) {
        return sum(block, which, Constant<GROUP * (P::STORED / 8) + decltype(eight)::value>{}, i);
      });
      products_see_writes();
      warps_meet<128>(barrier);
      places.store(a, piece, item.channel + GROUP * P::STORED, warp);
    });
  });
}

template <class P, class Sum>
__device__ __forceinline__ void store_whole_rows(const SourceRowsArguments<typename P::Scalar>& a, const GatherItem<P>& item,
                                                 char* room, const Sum& sum) {
  if (a.stored == 128) store_pieces<P, 128, BoxPlaces<P, 128>>(a, item, room, sum);
  else if (a.stored == 64) store_pieces<P, 64, BoxPlaces<P, 64>>(a, item, room, sum);
  else if (a.stored == 32) store_pieces<P, 32, BoxPlaces<P, 32>>(a, item, room, sum);
  else if (a.stored == 16) store_pieces<P, 128, VectorPlaces<P, 16>>(a, item, room, sum);
  else if (a.stored == 8) store_pieces<P, 128, VectorPlaces<P, 8>>(a, item, room, sum);
  else store_pieces<P, 128, VectorPlaces<P, 4>>(a, item, room, sum);
}
