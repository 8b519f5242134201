#include "attention/contract.h"

#include <ATen/core/Tensor.h>

#include <cmath>

#include "attention/capability.h"
#include "base/dtype_name.h"
#include "base/fail.h"

namespace cachedit::attention {
namespace {

template <class... Parts>
[[noreturn]] void refuse(std::string_view backend, const Parts&... parts) {
  fail<InputError>(c10::str("attention ", backend), parts...);
}

void check_tensors(std::string_view name, const Inputs& in) {
  for (const auto& [tensor, what] :
       {std::pair{&in.query, "query"}, std::pair{&in.key, "key"}, std::pair{&in.value, "value"}}) {
    if (!tensor->defined()) refuse(name, what, " is missing; give query, key and value");
    if (tensor->dim() != 4) {
      refuse(name, what, " must be [B, N, H, D]: got rank ", tensor->dim(), " ", tensor->sizes());
    }
  }
  const at::Tensor &q = in.query, &k = in.key, &v = in.value;
  if (k.device() != q.device() || v.device() != q.device()) {
    refuse(name, "query, key and value must be on one device: got ", q.device(), ", ", k.device(),
           " and ", v.device());
  }
  if (k.scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type()) {
    refuse(name, "query, key and value must have one dtype: got ", dtype_name(q.scalar_type()),
           ", ", dtype_name(k.scalar_type()), " and ", dtype_name(v.scalar_type()));
  }
}

void check_shapes(std::string_view name, const Inputs& in) {
  const at::Tensor &q = in.query, &k = in.key, &v = in.value;
  if (k.size(3) != q.size(3)) {
    refuse(name, "query and key must have one width: got query ", q.sizes(), ", key ", k.sizes());
  }
  if (v.size(3) != q.size(3)) {
    refuse(name, "the value's width must be the query's and key's, ", q.size(3), ": got width ",
           v.size(3), " (value ", v.sizes(), ")");
  }
  if (k.size(0) != q.size(0) || v.size(0) != q.size(0)) {
    refuse(name, "batch sizes must agree: got query ", q.sizes(), ", key ", k.sizes(), ", value ",
           v.sizes());
  }
  if (v.size(1) != k.size(1) || v.size(2) != k.size(2)) {
    refuse(name, "key and value must have the same tokens and heads: got key ", k.sizes(),
           ", value ", v.sizes());
  }
  const int64_t heads = q.size(2), kv_heads = k.size(2);
  if (heads != kv_heads && !in.enable_gqa) {
    refuse(name, "query and key must have as many heads: got ", heads, " and ", kv_heads,
           "; set enable_gqa if heads of the query share one");
  }
  if (heads != kv_heads && (kv_heads == 0 || heads % kv_heads != 0)) {
    refuse(name, "the key's heads must divide the query's: got ", kv_heads, " and ", heads);
  }
}

/// [b|1, h|1, q|1, k] as a view.
at::Tensor view_mask(std::string_view name, const Inputs& in) {
  const at::Tensor& mask = in.mask;
  const int64_t sizes[] = {in.query.size(0), in.query.size(2), in.query.size(1), in.key.size(1)};
  if (mask.dim() < 1 || mask.dim() > 4) {
    refuse(name, "a mask must have 1 to 4 dimensions: got ", mask.sizes());
  }
  if (mask.size(-1) != sizes[3]) {
    refuse(name, "the mask's last dimension must be the number of keys, ", sizes[3], ": got ",
           mask.sizes());
  }
  if (mask.dim() <= 2) {
    const int64_t rows = mask.dim() == 1 ? 1 : mask.size(0);
    if (rows != 1 && rows != sizes[0]) {
      refuse(name, "a mask of rank 2 says which keys take part and must be [", sizes[0], ", ",
             sizes[3], "]: got ", mask.sizes(),
             "; write one of queries x keys as [1, 1, queries, keys]");
    }
    return (mask.dim() == 1 ? mask.unsqueeze(0) : mask).unsqueeze(1).unsqueeze(1);
  }
  const at::Tensor view = mask.dim() == 3 ? mask.unsqueeze(0) : mask;
  for (int64_t i = 0; i < 3; ++i) {
    if (view.size(i) != 1 && view.size(i) != sizes[i]) {
      refuse(name, "a mask must broadcast to [B, H, Nq, Nkv], here ", at::IntArrayRef(sizes, 4),
             ": got ", mask.sizes());
    }
  }
  return view;
}

at::Tensor checked_mask(std::string_view name, const Inputs& in) {
  if (in.is_causal) {
    refuse(name, "a mask and is_causal exclude each other: got a mask of ", in.mask.sizes(),
           "; give one of them");
  }
  const at::ScalarType type = in.mask.scalar_type(), activations = in.query.scalar_type();
  if (type != at::kBool && type != activations && type != at::kFloat) {
    refuse(name, "a mask must be bool, ", dtype_name(activations), " or fp32: got ",
           dtype_name(type), "; a mask of zeros and ones is meant as bool: convert it");
  }
  if (in.mask.device() != in.query.device()) {
    refuse(name, "the mask must be where the query is, on ", in.query.device(), ": got ",
           in.mask.device());
  }
  at::Tensor view = view_mask(name, in);
  if (type == at::kBool && in.mask.all().item<bool>()) return {};
  return view;
}

}  // namespace

Inputs normalise(std::string_view backend, const Inputs& inputs) {
  check_tensors(backend, inputs);
  check_shapes(backend, inputs);
  Inputs in = inputs;
  if (in.mask.defined()) in.mask = checked_mask(backend, inputs);
  if (!in.scale) in.scale = 1 / std::sqrt(static_cast<double>(in.query.size(3)));
  if (!std::isfinite(*in.scale)) {
    refuse(backend, "the scale must be finite: got ", *in.scale, ", with a head dim of ",
           in.query.size(3));
  }
  return in;
}

Inputs check(const Backend& backend, const DeviceSupport& support, const Inputs& inputs,
             const Registry& registry) {
  Inputs in = normalise(backend.name, inputs);
  const Request request = describe(in);
  if (const auto reason = why_not(support, request)) {
    const std::string mask = in.mask.defined() ? c10::str(", mask ", inputs.mask.sizes()) : "";
    fail<UnsupportedError>("attention " + backend.name, *reason, " (query ", in.query.sizes(),
                           ", key ", in.key.sizes(), mask, ")", advice(registry, backend, request));
  }
  if (request.mask == MaskKind::kFloat32) in.mask = in.mask.to(request.dtype);
  return in;
}

}  // namespace cachedit::attention
