// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what the shared library exports; everything else in it is hidden. Exception classes carry it too, so that a
/// `catch` in one binary recognises what another one threw.
#if defined(__GNUC__) || defined(__clang__)
#define KVSIEVE_API __attribute__((visibility("default")))
#else
#define KVSIEVE_API
#endif
