// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvsieve::bench {

/// What has to be known of a result besides its numbers.
struct Provenance {
  std::string commit;  ///< of the build; "-dirty" when it had uncommitted changes
  std::string date;    ///< now, UTC
  std::string cpu;     ///< model name
};
Provenance provenance();

}  // namespace kvsieve::bench
