// SPDX-License-Identifier: Apache-2.0
//
// A function of ten tensors in apache-tvm-ffi.
#include <tvm/ffi/tvm_ffi.h>

namespace {

using Array = tvm::ffi::TensorView;

std::int64_t sum(Array a, Array b, Array c, Array d, Array e, Array f, Array g, Array h, Array i, Array j, double, bool,
                 std::int64_t) {
  return a.size(0) + b.size(0) + c.size(0) + d.size(0) + e.size(0) + f.size(0) + g.size(0) + h.size(0) + i.size(0) +
         j.size(0);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(sum, sum);
