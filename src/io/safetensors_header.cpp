// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_header.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>

namespace kvsieve::io {
namespace {

using Json = nlohmann::json;

/// Receives the parser's events. Every event that does not fit the format's fixed shape
///     { "__metadata__": {string: string}, name: {"dtype": string, "shape": [uint...], "data_offsets": [uint, uint]} }
/// stops the parser with a reason.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  Header header;
  std::string tensor;  ///< tensor at fault
  std::string reason;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is no 64-bit integer");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::in_shape && state_ != State::in_offsets) return unexpected("a number");
    auto& list = state_ == State::in_shape ? entry().shape : entry().offsets;
    const std::size_t limit = state_ == State::in_shape ? Tensor::max_rank : 2;
    if (list.size() == limit) {
      return fail(state_ == State::in_shape ? fmt::format("shape has more than {} dimensions", limit)
                                            : "data_offsets has more than 2 numbers");
    }
    list.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata_value) {
      header.metadata[key_] = value;
      state_ = State::in_metadata;
      return true;
    }
    if (state_ != State::dtype_value) return unexpected("a string");
    entry().dtype = value;
    state_ = State::in_tensor;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::start:
        state_ = State::top;
        return true;
      case State::tensor_value:
        header.entries.push_back({key_, {}, {}, {}});
        seen_fields_ = 0;
        state_ = State::in_tensor;
        return true;
      case State::metadata_object:
        state_ = State::in_metadata;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    key_ = name;
    if (state_ == State::top) {
      if (!names_.insert(name).second) return name == metadata_key ? fail("duplicate __metadata__") : duplicate(name);
      tensor = name == metadata_key ? "" : name;
      state_ = name == metadata_key ? State::metadata_object : State::tensor_value;
      return true;
    }
    if (state_ == State::in_metadata) {
      if (header.metadata.contains(name)) return fail(fmt::format("metadata {}: duplicate key", in_quotes(name)));
      state_ = State::metadata_value;
      return true;
    }
    return field(name);
  }

  bool end_object() override {
    if (state_ == State::in_tensor) {
      if (seen_fields_ != all_fields) {
        return fail(fmt::format("has no {}", (seen_fields_ & has_dtype) == 0   ? "dtype"
                                             : (seen_fields_ & has_shape) == 0 ? "shape"
                                                                               : "data_offsets"));
      }
      if (entry().offsets.size() != 2) return fail("data_offsets has fewer than 2 numbers");
    }
    tensor.clear();
    state_ = state_ == State::top ? State::done : State::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape_value) {
      state_ = State::in_shape;
    } else if (state_ == State::offsets_value) {
      state_ = State::in_offsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    state_ = State::in_tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    tensor.clear();
    return fail(fmt::format("header is not valid JSON at byte {}", position));
  }

 private:
  static constexpr std::string_view metadata_key = "__metadata__";
  static constexpr unsigned has_dtype = 1, has_shape = 2, has_offsets = 4, all_fields = 7;

  enum class State {
    start,
    top,
    metadata_object,
    in_metadata,
    metadata_value,
    tensor_value,
    in_tensor,
    dtype_value,
    shape_value,
    in_shape,
    offsets_value,
    in_offsets,
    done
  };

  HeaderEntry& entry() { return header.entries.back(); }

  bool fail(std::string why) {
    reason = std::move(why);
    return false;
  }

  bool duplicate(const std::string& name) {
    tensor = name;
    return fail("name occurs twice in the header");
  }

  bool field(const std::string& name) {
    const unsigned bit = name == "dtype"          ? has_dtype
                         : name == "shape"        ? has_shape
                         : name == "data_offsets" ? has_offsets
                                                  : 0;
    if (bit == 0) return fail(fmt::format("unknown field {} in the header", in_quotes(name)));
    if ((seen_fields_ & bit) != 0) return fail(fmt::format("{} occurs twice", name));
    seen_fields_ |= bit;
    state_ = bit == has_dtype ? State::dtype_value : bit == has_shape ? State::shape_value : State::offsets_value;
    return true;
  }

  bool unexpected(std::string_view got) {
    switch (state_) {
      case State::start:
        return fail(fmt::format("header is {}, want an object", got));
      case State::metadata_object:
        return fail(fmt::format("__metadata__ is {}, want an object of strings", got));
      case State::metadata_value:
        return fail(fmt::format("metadata {} is {}, want a string", in_quotes(key_), got));
      case State::tensor_value:
        return fail(fmt::format("header entry is {}, want an object", got));
      case State::dtype_value:
        return fail(fmt::format("dtype is {}, want a string", got));
      case State::shape_value:
      case State::in_shape:
        return fail(fmt::format("shape has {}, want an array of non-negative integers", got));
      default:
        return fail(fmt::format("data_offsets has {}, want an array of two non-negative integers", got));
    }
  }

  State state_ = State::start;
  std::string key_;
  std::unordered_set<std::string> names_;
  unsigned seen_fields_ = 0;
};

}  // namespace

Header parse_header(std::string_view json, const std::string& file) {
  // The parser takes a NUL for the end of its input, which would hide whatever follows.
  const std::size_t nul = json.find('\0');
  if (nul != std::string_view::npos) throw CaseError(file, fmt::format("header is not valid JSON at byte {}", nul + 1));
  HeaderReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) throw CaseError(file, reader.tensor, reader.reason);
  return std::move(reader.header);
}

}  // namespace kvsieve::io
