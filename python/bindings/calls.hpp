// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace kvsieve::python {

void bind_msa(nanobind::module_& m);
void bind_qsa(nanobind::module_& m);
void bind_merge(nanobind::module_& m);
void bind_info(nanobind::module_& m);
void bind_cases(nanobind::module_& m);

}  // namespace kvsieve::python
