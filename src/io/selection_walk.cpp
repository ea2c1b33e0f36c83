// SPDX-License-Identifier: Apache-2.0
#include "io/selection_walk.hpp"

#include <algorithm>

namespace kvsieve::io {

std::span<const std::int32_t> SelectionWalk::next(std::int64_t visible) {
  const std::int64_t size = std::min(topk_, visible);
  if (static_cast<std::int64_t>(chosen_.size()) < visible) chosen_.resize(static_cast<std::size_t>(visible), 0);
  if (replacement_ >= 1 || visible < last_visible_) {
    start_over(visible);
  } else {
    replace_some(visible);
  }
  last_visible_ = visible;
  grow(size, visible);
  if (keep_newest_ && size > 0) include_newest(visible - 1);
  return ids_;
}

void SelectionWalk::start_over(std::int64_t visible) {
  for (const std::int32_t id : ids_) chosen_[static_cast<std::size_t>(id)] = 0;
  ids_.clear();
  const std::int64_t size = std::min(topk_, visible);
  if (2 * size <= visible) return;  // few of many: grow() finds them at random
  // Most of few: a partial shuffle does not search for the last ones left.
  ids_.resize(static_cast<std::size_t>(visible));
  for (std::int64_t i = 0; i < visible; ++i) ids_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  for (std::int64_t i = 0; i < size; ++i) {
    std::swap(ids_[static_cast<std::size_t>(i)], ids_[static_cast<std::size_t>(i + random_.below(visible - i))]);
  }
  ids_.resize(static_cast<std::size_t>(size));
  for (const std::int32_t id : ids_) chosen_[static_cast<std::size_t>(id)] = 1;
}

void SelectionWalk::replace_some(std::int64_t visible) {
  if (replacement_ <= 0) return;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    const bool newest = keep_newest_ && ids_[i] == visible - 1;
    if (!newest && random_.chance(replacement_)) replace(i, visible);
  }
}

void SelectionWalk::grow(std::int64_t size, std::int64_t visible) {
  while (static_cast<std::int64_t>(ids_.size()) < size) {
    const std::int32_t id = unchosen(visible);
    chosen_[static_cast<std::size_t>(id)] = 1;
    ids_.push_back(id);
  }
}

void SelectionWalk::include_newest(std::int64_t newest) {
  if (chosen_[static_cast<std::size_t>(newest)] != 0) return;
  std::int32_t& id = ids_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(ids_.size())))];
  chosen_[static_cast<std::size_t>(id)] = 0;
  chosen_[static_cast<std::size_t>(newest)] = 1;
  id = static_cast<std::int32_t>(newest);
}

void SelectionWalk::replace(std::size_t slot, std::int64_t visible) {
  if (static_cast<std::int64_t>(ids_.size()) >= visible) return;  // every visible block is chosen
  const std::int32_t id = unchosen(visible);
  chosen_[static_cast<std::size_t>(ids_[slot])] = 0;
  chosen_[static_cast<std::size_t>(id)] = 1;
  ids_[slot] = id;
}

std::int32_t SelectionWalk::unchosen(std::int64_t visible) {
  while (true) {
    const std::int64_t id = random_.below(visible);
    if (chosen_[static_cast<std::size_t>(id)] == 0) return static_cast<std::int32_t>(id);
  }
}

}  // namespace kvsieve::io
