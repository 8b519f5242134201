// The number formats of each attention scheme as types: which products QK and PV use, how the
// softmax weights P are stored for PV, and where scales apply.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/dot.h"
#include "kernels/cpu/low_bit.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// How P is stored; P is first scaled so that 1 becomes the format's largest number.
enum class Weights {
  kPlain,  ///< as PV's element type
  kE4M3,   ///< relative to the running maximum
  kByte,   ///< 0..255 relative to the maximum of the key block
  kFp4,    ///< NVFP4 in groups of 16 keys
};

/// What one scale covers.
enum class Granularity { kNone, kToken, kGroup, kBlock };

/// Tokens of a Granularity::kGroup: the rows of a register block, the keys of a wide panel.
inline constexpr int kQueryGroup = kRows;
inline constexpr int kKeyGroup = 64;
/// Keys of a block are padded to a multiple of this.
inline constexpr int kKeyPadding = kPanel > kFp4Group ? kPanel : kFp4Group;
/// Query rows that are worked on together.
inline constexpr int kRowBlock = 48;

template <class Dot, ExpAccuracy accuracy>
struct ExactScheme {
  using QK = Dot;
  using PV = Dot;
  static constexpr Weights kWeights = Weights::kPlain;
  static constexpr ExpAccuracy kExp = accuracy;
  static constexpr int kKeyBlock = 128;
  static constexpr Granularity kScales = Granularity::kNone;  ///< of Q and K
  static constexpr Granularity kValueBlockScale = Granularity::kNone;
  static constexpr bool kSmoothKeys = false;
  static constexpr bool kSmoothValues = false;
  static constexpr bool kChannelScales = false;  ///< of V
};

template <bool smooth>
struct SageScheme {
  using QK = DotInt8;
  using PV = DotInt8;
  static constexpr Weights kWeights = Weights::kByte;
  static constexpr ExpAccuracy kExp = ExpAccuracy::kByte;
  static constexpr int kKeyBlock = 192;
  static constexpr Granularity kScales = Granularity::kGroup;
  static constexpr Granularity kValueBlockScale = Granularity::kNone;
  static constexpr bool kSmoothKeys = smooth;
  static constexpr bool kSmoothValues = false;
  static constexpr bool kChannelScales = true;
};

struct Fp8Scheme {
  using QK = DotInt8;
  using PV = DotWide;
  static constexpr Weights kWeights = Weights::kE4M3;
  static constexpr ExpAccuracy kExp = ExpAccuracy::kHalf;
  static constexpr int kKeyBlock = 128;
  static constexpr Granularity kScales = Granularity::kToken;
  static constexpr Granularity kValueBlockScale = Granularity::kNone;
  static constexpr bool kSmoothKeys = true;
  static constexpr bool kSmoothValues = true;
  static constexpr bool kChannelScales = true;
};

struct Fp8PerBlockScheme : Fp8Scheme {
  static constexpr Granularity kScales = Granularity::kBlock;
  static constexpr Granularity kValueBlockScale = Granularity::kBlock;
  static constexpr bool kSmoothValues = false;
  static constexpr bool kChannelScales = false;
};

struct Fp4Scheme {
  using QK = DotWide;
  using PV = DotWide;
  static constexpr Weights kWeights = Weights::kFp4;
  static constexpr ExpAccuracy kExp = ExpAccuracy::kHalf;
  static constexpr int kKeyBlock = 128;
  static constexpr Granularity kScales = Granularity::kToken;
  static constexpr Granularity kValueBlockScale = Granularity::kNone;
  static constexpr bool kSmoothKeys = true;
  static constexpr bool kSmoothValues = false;
  static constexpr bool kChannelScales = true;
};

template <class Scheme>
inline constexpr bool kIntegerKeys = __is_same(typename Scheme::QK, DotInt8);
template <class Scheme>
inline constexpr bool kQuantized = Scheme::kScales != Granularity::kNone;
/// PV's product of a key block is scaled before it is added to the output.
template <class Scheme>
inline constexpr bool kScaledProducts =
    Scheme::kWeights == Weights::kByte || Scheme::kValueBlockScale == Granularity::kBlock;

/// Tokens that share a scale.
template <class Scheme>
inline constexpr int kKeysPerScale = Scheme::kScales == Granularity::kToken   ? 1
                                     : Scheme::kScales == Granularity::kGroup ? kKeyGroup
                                                                              : Scheme::kKeyBlock;
template <class Scheme>
inline constexpr int kQueriesPerScale = Scheme::kScales == Granularity::kToken   ? 1
                                        : Scheme::kScales == Granularity::kGroup ? kQueryGroup
                                                                                 : kRowBlock;

/// log2 of what a weight of 1 is stored as, and that number.
template <Weights weights>
inline constexpr float kWeightLog2 = weights == Weights::kE4M3   ? 8.807354922f
                                     : weights == Weights::kByte ? 7.994353437f
                                     : weights == Weights::kFp4  ? 11.39231742f
                                                                 : 0.0f;
template <Weights weights>
inline constexpr float kWeightMax = weights == Weights::kE4M3   ? kMaxE4M3
                                    : weights == Weights::kByte ? 255.0f
                                    : weights == Weights::kFp4  ? kMaxE4M3* kMaxE2M1
                                                                : 1.0f;

}  // namespace cachedit::kernels::CACHEDIT_ISA
