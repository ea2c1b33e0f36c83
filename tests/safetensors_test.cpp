// SPDX-License-Identifier: Apache-2.0
//
// Malformed files: each gives one line that names file, tensor and reason.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "io/safetensors.hpp"

namespace kvsieve::io {
namespace {

std::vector<std::byte> file_with_length(std::uint64_t header_length, const std::string& header, std::size_t data) {
  std::vector<std::byte> bytes(8 + header.size() + data);
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(header_length >> (8 * i));
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::vector<std::byte> file_of(const std::string& header, std::size_t data) {
  return file_with_length(header.size(), header, data);
}

/// What parsing says, or "" when it says nothing.
std::string message_of(const std::vector<std::byte>& bytes) {
  try {
    parse_safetensors(bytes, "f");
  } catch (const CaseError& error) {
    return error.what();
  }
  return "";
}

struct Malformed {
  const char* name;
  std::string header;
  std::size_t data;
  std::string message;
};

void PrintTo(const Malformed& test, std::ostream* out) { *out << test.name; }

class MalformedHeader : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedHeader, GivesOneLine) {
  const Malformed& test = GetParam();
  EXPECT_EQ(message_of(file_of(test.header, test.data)), test.message);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"q":)" + entry(dtype, shape, offsets) + "}";
}

const std::vector<Malformed>& malformed_headers() {
  static const std::vector<Malformed> list = {
      {"NotJson", "{,}", 0, "f: header is not valid JSON at byte 2"},
      {"NotAnObject", "[]", 0, "f: header does not start with '{'"},
      {"Empty", "", 0, "f: header does not start with '{'"},
      {"Unfinished", R"({"q":{"dtype":)", 0, "f: header is not valid JSON at byte 15"},
      {"TrailingJson", "{} {}", 0, "f: header is not valid JSON at byte 4"},
      {"HiddenBehindNul", std::string("{}\0junk", 7), 0, "f: header is not valid JSON at byte 3"},
      {"NotUtf8", "{\"\xff\":1}", 0, "f: header is not valid JSON at byte 3"},
      {"TensorIsNumber", R"({"q":1})", 0, R"(f: tensor "q": header entry is a number, want an object)"},
      {"TensorIsNull", R"({"q":null})", 0, R"(f: tensor "q": header entry is null, want an object)"},
      {"TensorIsArray", R"({"q":[[[[]]]]})", 0, R"(f: tensor "q": header entry is an array, want an object)"},
      {"NestedObject", R"({"q":{"dtype":{"a":{}}}})", 0, R"(f: tensor "q": dtype is an object, want a string)"},
      {"DeepNesting", R"({"q":{"shape":)" + std::string(1000000, '['), 0,
       R"(f: tensor "q": shape has an array, want an array of non-negative integers)"},
      {"DTypeIsNumber", R"({"q":{"dtype":3}})", 0, R"(f: tensor "q": dtype is a number, want a string)"},
      {"UnknownDType", one("F64", "[1]", "[0,8]"), 8,
       R"(f: tensor "q": dtype is "F64", want BF16, F16, F32, F8_E4M3, I32 or I64)"},
      {"NoDType", R"({"q":{"shape":[],"data_offsets":[0,4]}})", 4, R"(f: tensor "q": has no dtype)"},
      {"NoShape", R"({"q":{"dtype":"F32","data_offsets":[0,4]}})", 4, R"(f: tensor "q": has no shape)"},
      {"NoOffsets", R"({"q":{"dtype":"F32","shape":[]}})", 4, R"(f: tensor "q": has no data_offsets)"},
      {"UnknownField", R"({"q":{"strides":[1]}})", 0, R"(f: tensor "q": unknown field "strides" in the header)"},
      {"FieldTwice", R"({"q":{"shape":[1],"shape":[2]}})", 0, R"(f: tensor "q": shape occurs twice)"},
      {"NegativeSize", one("F32", "[-1]", "[0,4]"), 4,
       R"(f: tensor "q": shape has a negative number, want an array of non-negative integers)"},
      {"FractionalSize", one("F32", "[1.5]", "[0,4]"), 4,
       R"(f: tensor "q": shape has a number that is no 64-bit integer, want an array of non-negative integers)"},
      {"SizePast64Bits", one("F32", "[18446744073709551616]", "[0,4]"), 4,
       R"(f: tensor "q": shape has a number that is no 64-bit integer, want an array of non-negative integers)"},
      {"SizeIsString", one("F32", R"(["1"])", "[0,4]"), 4,
       R"(f: tensor "q": shape has a string, want an array of non-negative integers)"},
      {"ShapeIsString", R"({"q":{"dtype":"F32","shape":"1"}})", 4,
       R"(f: tensor "q": shape has a string, want an array of non-negative integers)"},
      {"TooManyDimensions", one("F32", "[1,1,1,1,1,1,1]", "[0,4]"), 4,
       R"(f: tensor "q": shape has more than 6 dimensions)"},
      {"ShapeOverflows", one("F32", "[4294967296,4294967296]", "[0,4]"), 4,
       R"(f: tensor "q": shape [4294967296, 4294967296] overflows 63 bits)"},
      {"EmptyShapeOverflows", one("F32", "[0,4294967296,4294967296]", "[0,0]"), 0,
       R"(f: tensor "q": shape [0, 4294967296, 4294967296] overflows 63 bits)"},
      {"OneOffset", one("F32", "[1]", "[0]"), 4, R"(f: tensor "q": data_offsets has fewer than 2 numbers)"},
      {"ThreeOffsets", one("F32", "[1]", "[0,4,8]"), 4, R"(f: tensor "q": data_offsets has more than 2 numbers)"},
      {"HugeOffsets", one("F32", "[1]", "[18446744073709551612,18446744073709551615]"), 4,
       R"(f: tensor "q": data_offsets [18446744073709551612, 18446744073709551615] are not within the 4 bytes of data)"},
      {"OffsetsPastEnd", one("F32", "[2]", "[0,8]"), 4,
       R"(f: tensor "q": data_offsets [0, 8] are not within the 4 bytes of data)"},
      {"OffsetsReversed", one("F32", "[1]", "[4,0]"), 4,
       R"(f: tensor "q": data_offsets [4, 0] are not within the 4 bytes of data)"},
      {"WrongSize", one("BF16", "[2,3]", "[0,8]"), 8,
       R"(f: tensor "q": data_offsets give 8 bytes, BF16 [2, 3] has 12)"},
      {"Overlap", R"({"a":)" + entry("I32", "[2]", "[0,8]") + R"(,"b":)" + entry("I32", "[2]", "[4,12]") + "}", 12,
       R"(f: tensor "b": overlaps tensor "a")"},
      {"SameData", R"({"a":)" + entry("I32", "[2]", "[0,8]") + R"(,"b":)" + entry("I32", "[2]", "[0,8]") + "}", 8,
       R"(f: tensor "b": overlaps tensor "a")"},
      {"GapBefore", one("I32", "[1]", "[4,8]"), 8, R"(f: tensor "q": 4 unused bytes before its data)"},
      {"GapAfter", one("I32", "[1]", "[0,4]"), 9, "f: 5 unused bytes after the data"},
      {"NoTensorsButData", "{}", 3, "f: 3 unused bytes after the data"},
      {"DuplicateName", R"({"q":)" + entry("I32", "[1]", "[0,4]") + R"(,"q":)" + entry("I32", "[1]", "[0,4]") + "}", 4,
       R"(f: tensor "q": name occurs twice in the header)"},
      {"NameThatBreaksLines", "{\"a\\nb\\u0000\":1}", 0,
       R"(f: tensor "a\x0ab\x00": header entry is a number, want an object)"},
      {"LongName", "{\"" + std::string(1000, 'x') + "\":1}", 0,
       "f: tensor \"" + std::string(64, 'x') + "...\": header entry is a number, want an object"},
      {"MetadataNotAnObject", R"({"__metadata__":"x"})", 0, "f: __metadata__ is a string, want an object of strings"},
      {"MetadataNumber", R"({"__metadata__":{"seed":3}})", 0, R"(f: metadata "seed" is a number, want a string)"},
      {"MetadataNested", R"({"__metadata__":{"a":{"b":"c"}}})", 0, R"(f: metadata "a" is an object, want a string)"},
      {"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "f: duplicate __metadata__"},
      {"MetadataKeyTwice", R"({"__metadata__":{"a":"b","a":"c"}})", 0, R"(f: metadata "a": duplicate key)"},
  };
  return list;
}

INSTANTIATE_TEST_SUITE_P(Each, MalformedHeader, testing::ValuesIn(malformed_headers()),
                         [](const auto& instance) { return instance.param.name; });

TEST(Safetensors, HeaderLengthPastTheFile) {
  EXPECT_EQ(message_of(file_with_length(std::uint64_t{1} << 60, "{}", 0)),
            "f: header length is 1152921504606846976 bytes, but only 2 follow");
  EXPECT_EQ(message_of(file_with_length(std::numeric_limits<std::uint64_t>::max(), "{}", 0)),
            "f: header length is 18446744073709551615 bytes, but only 2 follow");
}

TEST(Safetensors, ShorterThanItsLengthField) {
  EXPECT_EQ(message_of({}), "f: is 0 bytes long, a safetensors file has at least 8");
  EXPECT_EQ(message_of(std::vector<std::byte>(7)), "f: is 7 bytes long, a safetensors file has at least 8");
}

std::vector<std::byte> small_file() {
  static const float values[2] = {1.5f, -2.0f};
  static const std::int32_t ids[3] = {7, -1, 9};
  return serialize_safetensors({{"format", "x"}},
                               {{"ids", {DType::i32, {3}, reinterpret_cast<const std::byte*>(ids), sizeof ids}},
                                {"values", {DType::f32, {2, 1}, reinterpret_cast<const std::byte*>(values), 8}},
                                {"none", {DType::bf16, {0, 4}, nullptr, 0}}});
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::vector<std::byte> whole = small_file();
  EXPECT_EQ(message_of(whole), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string message = message_of({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
    EXPECT_EQ(message.substr(0, 3), "f: ") << size;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

/// A directory that is removed with what is in it.
class Files : public testing::Test {
 protected:
  Files() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvsieve_test_XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~Files() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  static std::string read_message(const std::string& file) {
    try {
      read_safetensors(file);
    } catch (const CaseError& error) {
      EXPECT_EQ(error.file(), file);
      return error.reason();
    }
    return "";
  }

  std::string directory_;
};

TEST_F(Files, RoundTrip) {
  const std::int64_t wide[2] = {std::numeric_limits<std::int64_t>::min(), 5};
  const std::uint8_t narrow[3] = {1, 2, 3};
  const std::uint16_t middle[2] = {0x3F80, 0xFFFF};
  const auto bytes = [](const auto& array) { return reinterpret_cast<const std::byte*>(array); };
  write_safetensors(path("a"), {{"key", "line\nbreak \"quoted\" \xC3\xA4"}},
                    {{"narrow", {DType::f8_e4m3, {3}, bytes(narrow), 3}},
                     {"middle", {DType::bf16, {1, 2}, bytes(middle), 4}},
                     {"wide", {DType::i64, {2}, bytes(wide), 16}},
                     {"scalar", {DType::f16, {}, bytes(middle), 2}}});
  const SafetensorsFile file = read_safetensors(path("a"));
  EXPECT_EQ(file.metadata.at("key"), "line\nbreak \"quoted\" \xC3\xA4");
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_EQ(std::memcmp(file.tensors.at("wide").data, wide, 16), 0);
  EXPECT_EQ(std::memcmp(file.tensors.at("narrow").data, narrow, 3), 0);
  EXPECT_EQ(std::memcmp(file.tensors.at("middle").data, middle, 4), 0);
  EXPECT_EQ(file.tensors.at("middle").shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(file.tensors.at("scalar").shape, std::vector<std::int64_t>{});
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % dtype_size(tensor.dtype), 0u) << name;
  }
}

TEST_F(Files, ThatAreNone) {
  EXPECT_EQ(read_message(path("missing")), "cannot open: No such file or directory");
  EXPECT_EQ(read_message(directory_), "is a directory");
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_message(path("fifo")), "is not a regular file");
  EXPECT_EQ(read_message("/dev/null"), "is not a regular file");
  std::ofstream(path("empty")).flush();
  EXPECT_EQ(read_message(path("empty")), "is empty");
  if (geteuid() != 0) {  // root may read everything
    std::ofstream(path("secret")) << "x";
    ASSERT_EQ(chmod(path("secret").c_str(), 0), 0);
    EXPECT_EQ(read_message(path("secret")), "cannot open: Permission denied");
  }
}

TEST_F(Files, CutWhileInUse) {
  const std::vector<std::byte> bytes = small_file();
  std::ofstream(path("a"), std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const SafetensorsFile file = read_safetensors(path("a"));
  EXPECT_NO_THROW(file.mapping->check_not_truncated());
  ASSERT_EQ(truncate(path("a").c_str(), 5), 0);
  try {
    file.mapping->check_not_truncated();
    FAIL();
  } catch (const CaseError& error) {
    EXPECT_EQ(error.reason(), "was cut from " + std::to_string(bytes.size()) + " to 5 bytes while in use");
  }
}

TEST_F(Files, ThatCannotBeWritten) {
  try {
    write_safetensors(directory_, {}, {});
    FAIL();
  } catch (const CaseError& error) {
    EXPECT_EQ(error.what(), directory_ + ": cannot write: Is a directory");
  }
  if (std::filesystem::exists("/dev/full")) {
    EXPECT_THROW(write_safetensors("/dev/full", {{"a", "b"}}, {}), CaseError);
  }
}

TEST(CaseErrorMessage, StaysOneLine) {
  const CaseError error("a\nb", "t\r", "why\nnot");
  EXPECT_STREQ(error.what(), R"(a\x0ab: tensor "t\x0d": why\x0anot)");
}

}  // namespace
}  // namespace kvsieve::io
