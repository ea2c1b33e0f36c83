// SPDX-License-Identifier: Apache-2.0
#include "support/route_tables.hpp"

#include <algorithm>
#include <limits>

namespace kvsieve::test {
namespace {

/// An index that is mostly in [0, count), sometimes garbage.
std::int32_t index(RouteRandom& random, std::int64_t count, bool hostile) {
  static constexpr std::int32_t garbage[] = {-1, -2, std::numeric_limits<std::int32_t>::min(),
                                             std::numeric_limits<std::int32_t>::max()};
  if (hostile && uniform(random, 0, 7) == 0) return garbage[uniform(random, 0, 3)];
  if (hostile && uniform(random, 0, 7) == 0) return static_cast<std::int32_t>(count + uniform(random, 0, 2));
  return static_cast<std::int32_t>(uniform(random, 0, std::max<std::int64_t>(count - 1, 0)));
}

/// Pointers of a problem to its tables, with what each one points to.
template <class Problem, class Tables>
auto pointers(Problem& p, Tables& t) {
  using Vector = decltype(&t.ids);
  return std::vector<std::pair<const std::int32_t**, Vector>>{{&p.page_table, &t.page_table},
                                                              {&p.kv_lengths, &t.kv_lengths},
                                                              {&p.kv_starts, &t.kv_starts},
                                                              {&p.row_starts, &t.row_starts},
                                                              {&p.q_offset, &t.q_offset},
                                                              {&p.ids, &t.ids},
                                                              {&p.token_to_request, &t.token_to_request},
                                                              {&p.positions32, &t.positions},
                                                              {&p.group_bounds, &t.bounds}};
}

class TableMaker {
 public:
  TableMaker(RouteRandom& random, const TableOptions& options)
      : random_(random), options_(options), tables_(std::make_unique<RouteTables>()), p_(tables_->problem) {}

  std::unique_ptr<RouteTables> make() {
    p_.num_requests = below(1, 4);
    p_.total_q = below(1, options_.total_q);
    p_.num_kv_heads = below(1, 3);
    p_.num_qo_heads = p_.num_kv_heads * below(1, 4);
    p_.block_size = std::int64_t{4} << below(0, 3);
    p_.topk = below(0, options_.topk);
    p_.valid_prefix = below(0, 1) == 1;
    p_.causal = below(0, 3) != 0;
    if (options_.qsa || below(0, 2) != 0) {
      make_pages();
    } else {
      make_flat_ranges();
    }
    if (options_.qsa) {
      make_qsa_rows();
    } else {
      make_msa_rows();
    }
    make_ids();
    for (const auto& [pointer, table] : pointers(p_, *tables_)) {
      if (!table->empty()) *pointer = table->data();
    }
    return std::move(tables_);
  }

 private:
  std::int64_t below(std::int64_t low, std::int64_t high) { return uniform(random_, low, high); }
  std::int32_t entry(std::int64_t count) { return index(random_, count, options_.hostile); }

  void make_pages() {
    p_.paged = true;
    p_.page_size = p_.block_size * below(1, 3);
    p_.max_pages = below(1, options_.max_pages);
    p_.num_pages = p_.num_requests * p_.max_pages + 1;
    p_.page_table_stride = p_.max_pages;
    capacity_ = p_.max_pages * p_.page_size;
    for (std::int64_t i = 0; i < p_.num_requests * p_.max_pages; ++i)
      tables_->page_table.push_back(entry(p_.num_pages));
    if (options_.qsa) return;
    for (std::int64_t b = 0; b < p_.num_requests; ++b) tables_->kv_lengths.push_back(entry(capacity_ + 1));
  }

  void make_flat_ranges() {
    p_.num_pages = 1;
    p_.page_size = p_.num_requests * below(1, options_.max_pages * 2 * p_.block_size);
    capacity_ = p_.page_size;
    for (std::int64_t b = 0; b <= p_.num_requests; ++b) {
      const std::int64_t even = b * p_.page_size / p_.num_requests;
      const bool garbage = options_.hostile && below(0, 3) == 0;
      tables_->kv_starts.push_back(garbage ? entry(p_.page_size + 1) : static_cast<std::int32_t>(even));
    }
  }

  void make_msa_rows() {
    if (below(0, 3) == 0) {  // decode
      p_.row_rule = RowRule::rows_per_request;
      p_.rows_per_request = std::max<std::int64_t>(p_.total_q / p_.num_requests, 1);
      p_.total_q = p_.rows_per_request * p_.num_requests;
    } else {
      p_.row_rule = RowRule::cu_seqlens;
      for (std::int64_t b = 0; b < p_.num_requests; ++b) {
        tables_->row_starts.push_back(options_.hostile ? entry(p_.total_q + 1)
                                                       : static_cast<std::int32_t>(b * p_.total_q / p_.num_requests));
      }
      tables_->row_starts.push_back(static_cast<std::int32_t>(p_.total_q));
    }
    if (below(0, 3) != 0) return;
    for (std::int64_t b = 0; b < p_.num_requests; ++b) {
      const std::int32_t offset = entry(capacity_ + 1);  // hostile: any int
      tables_->q_offset.push_back(offset < 0 ? offset : offset - 3);
    }
  }

  void make_qsa_rows() {
    p_.row_rule = RowRule::per_row;
    p_.valid_prefix = true;
    p_.max_kv_length = capacity_;
    if (options_.hostile && below(0, 3) == 0) p_.max_kv_length = below(0, 1) == 0 ? capacity_ / 2 : 2 * capacity_;
    for (std::int64_t row = 0; row < p_.total_q; ++row) {
      const bool jump = below(0, 4) == 0;  // neighbouring rows mostly share a request
      tables_->token_to_request.push_back(row == 0 || jump ? entry(p_.num_requests) : tables_->token_to_request.back());
      tables_->positions.push_back(entry(p_.max_kv_length));
    }
    if (below(0, 2) != 0) return;
    p_.num_groups = 1;
    tables_->bounds = {
        options_.hostile ? entry(p_.total_q) : 0,
        options_.hostile ? entry(p_.total_q + 1) : static_cast<std::int32_t>(p_.total_q - p_.total_q / 8)};
  }

  void make_ids() {
    const bool shared = below(0, 2) == 0;
    const std::int64_t lists = shared ? 1 : p_.num_kv_heads;
    const std::int64_t blocks = (capacity_ + p_.block_size - 1) / p_.block_size;
    for (std::int64_t i = 0; i < p_.total_q * lists * p_.topk; ++i) tables_->ids.push_back(entry(blocks));
    p_.shared_selection = shared;
    p_.ids_stride_row = p_.topk;
    p_.ids_stride_head = shared ? 0 : p_.total_q * p_.topk;
  }

  RouteRandom& random_;
  TableOptions options_;
  std::unique_ptr<RouteTables> tables_;
  AttentionProblem& p_;
  std::int64_t capacity_ = 0;  ///< tokens that a request can have
};

}  // namespace

std::int64_t uniform(RouteRandom& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

std::vector<const std::vector<std::int32_t>*> RouteTables::tables() const {
  AttentionProblem unused;
  std::vector<const std::vector<std::int32_t>*> result;
  for (const auto& [pointer, table] : pointers(unused, *this)) result.push_back(table);
  return result;
}

AttentionProblem RouteTables::with_tables(const std::vector<const std::int32_t*>& copies) const {
  AttentionProblem copy = problem;
  std::size_t i = 0;
  for (const auto& [pointer, table] : pointers(copy, *this)) {
    *pointer = table->empty() ? nullptr : copies[i];
    ++i;
  }
  return copy;
}

std::unique_ptr<RouteTables> random_tables(RouteRandom& random, const TableOptions& options) {
  return TableMaker(random, options).make();
}

}  // namespace kvsieve::test
