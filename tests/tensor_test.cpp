// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/tensor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kvsieve/options.hpp"

namespace kvsieve {
namespace {

using Sizes = std::vector<std::int64_t>;

Sizes shape_of(const Tensor& t) { return {t.shape.begin(), t.shape.begin() + t.rank}; }
Sizes strides_of(const Tensor& t) { return {t.stride.begin(), t.stride.begin() + t.rank}; }

template <class Call>
ArgumentError argument_error(Call&& call) {
  try {
    call();
  } catch (const ArgumentError& error) {
    return error;
  }
  ADD_FAILURE() << "no ArgumentError";
  return {"", "", ""};
}

TEST(Tensor, RowMajorView) {
  float data[24] = {};
  const Tensor t(data, DType::f32, {2, 3, 4});
  EXPECT_EQ(t.data, data);
  EXPECT_EQ(shape_of(t), (Sizes{2, 3, 4}));
  EXPECT_EQ(strides_of(t), (Sizes{12, 4, 1}));
  EXPECT_EQ(t.numel(), 24);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.device, (Device{DeviceType::cpu, 0}));
}

TEST(Tensor, NotGiven) {
  const Tensor t;
  EXPECT_FALSE(t.defined());
  EXPECT_EQ(to_string(t), "not given");
}

TEST(Tensor, StridedView) {
  const Tensor t(nullptr, DType::bf16, {512, 64, 128}, {16384, 128, 1}, {DeviceType::cuda, 3});
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(to_string(t), "bf16[512, 64, 128] strides [16384, 128, 1] on cuda:3");
  EXPECT_EQ(to_string(Tensor(nullptr, DType::i32, {2, 0})), "i32[2, 0] on cpu");
  EXPECT_EQ(to_string(Tensor(nullptr, DType::f32, {})), "f32[] on cpu");
}

TEST(Tensor, ContiguityIgnoresStridesOfSizeOneAndOfEmptyTensors) {
  EXPECT_TRUE(Tensor(nullptr, DType::f32, {1, 4}, {77, 1}).is_contiguous());
  EXPECT_TRUE(Tensor(nullptr, DType::f32, {3, 1, 4}, {4, -9, 1}).is_contiguous());
  EXPECT_TRUE(Tensor(nullptr, DType::f32, {0, 4}, {5, 3}).is_contiguous());
  EXPECT_FALSE(Tensor(nullptr, DType::f32, {2, 4}, {5, 1}).is_contiguous());
  EXPECT_FALSE(Tensor(nullptr, DType::f32, {2, 4}, {1, 2}).is_contiguous());
}

TEST(Tensor, NumberOfElements) {
  EXPECT_EQ(Tensor(nullptr, DType::f32, {}).numel(), 1);
  EXPECT_EQ(Tensor(nullptr, DType::f32, {5, 0, 7}).numel(), 0);
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_EQ(Tensor(nullptr, DType::f32, {big, big}).numel(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(Tensor(nullptr, DType::f32, {big, big, 0}).numel(), 0);
}

TEST(Tensor, RefusesTooManyDimensions) {
  const ArgumentError error = argument_error([] { Tensor(nullptr, DType::f32, {1, 1, 1, 1, 1, 1, 1}); });
  EXPECT_STREQ(error.what(), "shape: got 7 dimensions, want at most 6");
  EXPECT_EQ(error.argument(), "shape");
}

TEST(Tensor, RefusesStridesThatDoNotMatchTheShape) {
  const ArgumentError error = argument_error([] { Tensor(nullptr, DType::f32, {2, 3}, {1}); });
  EXPECT_STREQ(error.what(), "stride: got 1 strides, want 2, one per dimension");
}

TEST(Tensor, DTypeNamesAndSizes) {
  EXPECT_EQ(dtype_name(DType::bf16), "bf16");
  EXPECT_EQ(dtype_name(DType::f16), "f16");
  EXPECT_EQ(dtype_name(DType::f8_e4m3), "f8_e4m3");
  EXPECT_EQ(dtype_name(DType::f32), "f32");
  EXPECT_EQ(dtype_name(DType::i32), "i32");
  EXPECT_EQ(dtype_name(DType::i64), "i64");
  EXPECT_EQ(dtype_name(DType::none), "none");
  EXPECT_EQ(dtype_size(DType::f8_e4m3), 1u);
  EXPECT_EQ(dtype_size(DType::bf16), 2u);
  EXPECT_EQ(dtype_size(DType::i64), 8u);
  EXPECT_EQ(dtype_size(DType::none), 0u);
}

TEST(Path, NamesBothWays) {
  for (const Path path : {Path::automatic, Path::reference, Path::cpu, Path::cuda_portable, Path::cuda_sm90}) {
    EXPECT_EQ(path_from_name(path_name(path)), path);
  }
  EXPECT_EQ(path_name(Path::automatic), "auto");
  const ArgumentError error = argument_error([] { path_from_name("gpu"); });
  EXPECT_STREQ(error.what(), "path: got \"gpu\", want auto, reference, cpu, cuda_portable or cuda_sm90");
}

// ---- DLPack --------------------------------------------------------------------------------------------------------

// DLPack's ABI, as in dlpack.h (field types and order).
struct DlDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};
struct DlDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t ndim;
  DlDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DTypeCode {
  DType dtype;
  std::uint8_t code, bits;
};
constexpr DTypeCode dtype_codes[] = {{DType::f32, 2, 32},     {DType::f16, 2, 16}, {DType::bf16, 4, 16},
                                     {DType::f8_e4m3, 10, 8}, {DType::i32, 0, 32}, {DType::i64, 0, 64}};

TEST(DLPack, RoundTripOfEveryDType) {
  std::byte data[64] = {};
  for (const DTypeCode& c : dtype_codes) {
    Tensor t(data, c.dtype, {2, 3}, {8, 1});
    const auto dl = to_dlpack<DlTensor>(t);
    EXPECT_EQ(dl.dtype.code, c.code);
    EXPECT_EQ(dl.dtype.bits, c.bits);
    EXPECT_EQ(dl.dtype.lanes, 1);
    EXPECT_EQ(dl.device.device_type, 1);
    EXPECT_EQ(dl.byte_offset, 0u);
    EXPECT_EQ(dl.shape, t.shape.data());

    const Tensor back = from_dlpack(dl);
    EXPECT_EQ(back.data, t.data);
    EXPECT_EQ(back.dtype, t.dtype);
    EXPECT_EQ(back.device, t.device);
    EXPECT_EQ(shape_of(back), shape_of(t));
    EXPECT_EQ(strides_of(back), strides_of(t));
  }
}

TEST(DLPack, ByteOffsetAndDefaultStrides) {
  std::byte data[256] = {};
  std::int64_t shape[] = {2, 3, 4};
  const DlTensor dl{data, {1, 0}, 3, {4, 16, 1}, shape, nullptr, 32};
  const Tensor t = from_dlpack(dl);
  EXPECT_EQ(t.data, data + 32);
  EXPECT_EQ(strides_of(t), (Sizes{12, 4, 1}));
}

TEST(DLPack, NullDataStaysNull) {
  std::int64_t shape[] = {0, 4};
  const DlTensor dl{nullptr, {1, 0}, 2, {2, 32, 1}, shape, nullptr, 16};
  EXPECT_EQ(from_dlpack(dl).data, nullptr);
}

TEST(DLPack, Scalar) {
  float value = 2.0f;
  const DlTensor dl{&value, {1, 0}, 0, {2, 32, 1}, nullptr, nullptr, 0};
  const Tensor t = from_dlpack(dl);
  EXPECT_EQ(t.rank, 0);
  EXPECT_EQ(t.numel(), 1);
}

TEST(DLPack, Devices) {
  std::int64_t shape[] = {1};
  DlTensor dl{shape, {2, 5}, 1, {0, 64, 1}, shape, nullptr, 0};
  EXPECT_EQ(from_dlpack(dl).device, (Device{DeviceType::cuda, 5}));
  dl.device.device_type = 13;  // managed
  EXPECT_EQ(from_dlpack(dl).device, (Device{DeviceType::cuda, 5}));
  dl.device.device_type = 3;  // pinned host memory
  EXPECT_EQ(from_dlpack(dl).device, (Device{DeviceType::cpu, 0}));

  Tensor cuda(shape, DType::i64, {1}, {DeviceType::cuda, 5});
  EXPECT_EQ(to_dlpack<DlTensor>(cuda).device.device_type, 2);
  EXPECT_EQ(to_dlpack<DlTensor>(cuda).device.device_id, 5);
}

TEST(DLPack, OverflowingShapeGetsSaturatedStrides) {
  std::int64_t shape[] = {3, std::int64_t{1} << 40, std::int64_t{1} << 40};
  const DlTensor dl{shape, {1, 0}, 3, {2, 32, 1}, shape, nullptr, 0};
  EXPECT_EQ(from_dlpack(dl).stride[0], std::numeric_limits<std::int64_t>::max());
}

TEST(DLPack, Refuses) {
  std::int64_t shape[] = {1, 1, 1, 1, 1, 1, 1};
  const DlTensor good{shape, {1, 0}, 1, {2, 32, 1}, shape, nullptr, 0};
  const auto message = [&](auto&& change) {
    DlTensor dl = good;
    change(dl);
    const ArgumentError error = argument_error([&] { from_dlpack(dl); });
    EXPECT_EQ(error.argument(), "dltensor");
    return std::string(error.what());
  };
  const std::string dtypes = ", want float32, float16, bfloat16, float8_e4m3fn, int32 or int64 with 1 lane";
  EXPECT_EQ(message([](DlTensor& t) { t.dtype.bits = 64; }),
            "dltensor: got DLPack dtype code 2, bits 64, lanes 1" + dtypes);
  EXPECT_EQ(message([](DlTensor& t) { t.dtype.code = 1; }),
            "dltensor: got DLPack dtype code 1, bits 32, lanes 1" + dtypes);
  EXPECT_EQ(message([](DlTensor& t) { t.dtype.lanes = 4; }),
            "dltensor: got DLPack dtype code 2, bits 32, lanes 4" + dtypes);
  EXPECT_EQ(message([](DlTensor& t) { t.device.device_type = 10; }),
            "dltensor: got DLPack device type 10, want CPU (1) or CUDA (2)");
  EXPECT_EQ(message([](DlTensor& t) { t.ndim = 7; }), "dltensor: got 7 dimensions, want 0 to 6");
  EXPECT_EQ(message([](DlTensor& t) { t.ndim = -1; }), "dltensor: got -1 dimensions, want 0 to 6");
  EXPECT_EQ(message([](DlTensor& t) { t.shape = nullptr; }), "dltensor: got a null shape, want an array of ndim sizes");

  Tensor undefined;
  EXPECT_STREQ(argument_error([&] { to_dlpack<DlTensor>(undefined); }).what(),
               "tensor: got a tensor that is not given, want a defined tensor");
}

}  // namespace
}  // namespace kvsieve
