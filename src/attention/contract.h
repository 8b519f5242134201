// The contract of every attention call, checked before a backend sees it: shapes, dtypes, devices,
// and what a mask may be.
//
// Masks: bool (true takes part) or additive float of the query's dtype (fp32 where the backend
// casts it). The last dimension is Nkv.
//   [Nkv], [B, Nkv] or [1, Nkv]   which keys take part, for every query and head. Rank 2 is always
//                                 this, also where B equals Nq; [Nq, Nkv] is written [1, 1, Nq,
//                                 Nkv]
//   3-D and 4-D                   broadcast to [B, H, Nq, Nkv], aligned at the last dimension
// A bool mask that is all true is as no mask, for every backend. A mask and is_causal exclude each
// other, also where the mask is all true.
#pragma once

#include "attention/backend.h"
#include "attention/registry.h"

namespace cachedit::attention {

/// The rules that hold for every backend: throws InputError naming `backend`, the rule and what was
/// given. Returns the inputs with the mask as a view [b|1, h|1, q|1, k] (or undefined, where it is
/// all true) and the scale filled in. Copies nothing.
Inputs normalise(std::string_view backend, const Inputs& inputs);

/// normalise(), and what this implementation takes: throws UnsupportedError naming the backend,
/// what was given, what it takes, and the backends of the registry that would do. An fp32 mask of
/// 16-bit inputs comes back in their dtype; nothing else is copied.
Inputs check(const Backend& backend, const DeviceSupport& support, const Inputs& inputs,
             const Registry& registry = builtin_registry());

}  // namespace cachedit::attention
