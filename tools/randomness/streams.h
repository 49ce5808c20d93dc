// The integers behind the masks as one bit stream, in the orders in which a user may read them.
//
// Numbers are joined end to end, lowest bit first: bit j of number k is bit 21 k + j of the stream, and bit n of the
// stream is bit n % 32 of word n / 32. The order in which numbers come is a Source; pack() makes words of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "philox.h"

namespace randomness {

constexpr uint64_t kRows = 65536;           // rows of the [N, W] tensor of one call, read down its columns
constexpr uint64_t kBernoulliRows = 1 << 20;  // the same for masks of one bit
constexpr uint64_t kCallElements = 1000;    // elements of one of the consecutive calls
constexpr uint64_t kSeedElements = 96;      // elements of one of the consecutive seeds

// How a group's words become numbers of `bits` bits, `count` to a group.
struct Scheme {
    int bits, count;
    void (*numbers)(const Group&, uint32_t* out);
};

// Six numbers of 21 bits from a block; no two share a bit.
inline void independent(const Group& group, uint32_t* out) {
    for (int lane = 0; lane < kLanes; ++lane) {
        const uint32_t w0 = group.word[0][lane], w1 = group.word[1][lane];
        const uint32_t w2 = group.word[2][lane], w3 = group.word[3][lane];
        out[lane] = w0 >> 11;
        out[16 + lane] = w1 >> 11;
        out[32 + lane] = w2 >> 11;
        out[48 + lane] = w3 >> 11;
        out[64 + lane] = (w0 & 0x7FF) << 10 | (w1 & 0x3FF);
        out[80 + lane] = (w2 & 0x7FF) << 10 | (w3 & 0x3FF);
    }
}

// The masks before that: eight numbers of 22 bits, whose lower bits are borrowed from each other. Kept because the
// batteries must fail on them.
inline void borrowed(const Group& group, uint32_t* out) {
    for (int j = 0; j < 4; ++j)
        for (int lane = 0; lane < kLanes; ++lane) {
            const uint32_t word = group.word[j][lane];
            const uint32_t next = group.word[(j + 1) % 4][lane], previous = group.word[(j + 3) % 4][lane];
            out[32 * j + lane] = (word ^ next >> 16) >> 10;
            out[32 * j + 16 + lane] = ((word << 16 | word >> 16) ^ previous >> 16) >> 10;
        }
}

inline Scheme scheme_named(const std::string& name) {
    if (name == "independent") return {21, 96, independent};
    if (name == "borrowed") return {22, 128, borrowed};
    throw std::invalid_argument("expected --scheme independent or borrowed, got " + name);
}

// Seeds of successive calls as torch.randint(2**63 - 1, ()) draws them after torch.manual_seed(seed): torch's generator
// on the CPU is the 32-bit Mersenne Twister, which takes the lower half of its seed; a draw joins two outputs, upper
// half first.
class TorchSeeds {
   public:
    explicit TorchSeeds(uint64_t seed) : engine_(uint32_t(seed)) {}
    uint64_t next() {
        const uint64_t upper = engine_(), lower = engine_();
        return (upper << 32 | lower) % ((uint64_t(1) << 63) - 1);
    }

   private:
    std::mt19937 engine_;
};

inline void append_call(const Scheme& scheme, uint64_t seed, uint64_t first_group, uint64_t count,
                        std::vector<uint32_t>& out) {
    const size_t start = out.size();
    const uint64_t groups = (count + scheme.count - 1) / scheme.count;
    out.resize(start + groups * scheme.count);
    Group group;
    for (uint64_t g = 0; g < groups; ++g) {
        draw(seed, first_group + g, group);
        scheme.numbers(group, &out[start + g * scheme.count]);
    }
    out.resize(start + count);
}

// One call's [rows, width] tensor, read down the columns: all of column 0, then all of column 1, ...
inline void columns(const Scheme& scheme, uint64_t seed, uint64_t rows, uint64_t width, std::vector<uint32_t>& out) {
    constexpr uint64_t kGroupsAtOnce = 32;
    out.resize(rows * width);
    std::vector<uint32_t> part;
    const uint64_t total = rows * width, step = kGroupsAtOnce * scheme.count;  // whole rows: widths divide 32 * 96
    for (uint64_t first = 0; first < total; first += step) {
        part.clear();
        append_call(scheme, seed, first / scheme.count, std::min(step, total - first), part);
        const uint64_t row = first / width, height = part.size() / width;
        for (uint64_t column = 0; column < width; ++column)
            for (uint64_t r = 0; r < height; ++r) out[column * rows + row + r] = part[r * width + column];
    }
}

// A stream of 32-bit words.
class Stream {
   public:
    virtual ~Stream() = default;
    uint32_t next() {
        while (place_ == words_.size()) refill();
        return words_[place_++];
    }
    // The words made in one go, for writing them out together.
    const std::vector<uint32_t>& chunk() {
        refill();
        return words_;
    }

   protected:
    virtual void make(std::vector<uint32_t>& words) = 0;

   private:
    void refill() {
        words_.clear();
        make(words_);
        place_ = 0;
    }
    std::vector<uint32_t> words_;
    size_t place_ = 0;
};

// Numbers of a continuous law; `source` appends some numbers in their order each time it is called.
class Packed : public Stream {
   public:
    using Source = std::function<void(std::vector<uint32_t>&)>;
    Packed(int bits, Source source) : bits_(bits), source_(std::move(source)) {}

   protected:
    void make(std::vector<uint32_t>& words) override {
        numbers_.clear();
        while (numbers_.size() < kAtLeast) source_(numbers_);
        words.resize(numbers_.size() + 1);
        uint32_t* out = words.data();
        uint64_t pending = pending_;
        int held = held_;
        for (const uint32_t number : numbers_) {
            pending |= uint64_t(number) << held;
            held += bits_;
            *out = uint32_t(pending);
            const int full = held >= 32;
            out += full;
            pending >>= 32 * full;
            held -= 32 * full;
        }
        pending_ = pending;
        held_ = held;
        words.resize(out - words.data());
    }

   private:
    static constexpr size_t kAtLeast = 4096;
    int bits_, held_ = 0;
    uint64_t pending_ = 0;  // the `held_` bits that do not fill a word yet
    Source source_;
    std::vector<uint32_t> numbers_;
};

// Masks of one bit. A run of 16 words holds 512 elements: element r is bit r / 16 of word r % 16.
class BernoulliNatural : public Stream {
   public:
    explicit BernoulliNatural(uint64_t seed) : seed_(seed) {}

   protected:
    void make(std::vector<uint32_t>& words) override {
        Group group;
        for (int g = 0; g < 64; ++g) {
            draw(seed_, group_++, group);
            for (const auto& run : group.word)
                for (int bit = 0; bit < 32; bit += 2) words.push_back(plane(run, bit) | plane(run, bit + 1) << 16);
        }
    }

   private:
    static uint32_t plane(const uint32_t* run, int bit) {
#ifdef __AVX2__
        const __m128i count = _mm_cvtsi32_si128(31 - bit);
        const auto half = [&](const uint32_t* words) {
            const __m256i shifted = _mm256_sll_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(words)), count);
            return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(shifted)));
        };
        return half(run) | half(run + 8) << 8;
#else
        uint32_t bits = 0;
        for (int lane = 0; lane < kLanes; ++lane) bits |= (run[lane] >> bit & 1) << lane;
        return bits;
#endif
    }
    uint64_t seed_, group_ = 0;
};

// The same down the columns of an [N, 16] tensor: a column is a lane, so its bits are that lane's words as they are.
class BernoulliColumns : public Stream {
   public:
    explicit BernoulliColumns(uint64_t seed) : seeds_(seed) {}

   protected:
    void make(std::vector<uint32_t>& words) override {
        constexpr uint64_t height = kBernoulliRows / 32;  // words of a column
        words.resize(kLanes * height);
        const uint64_t seed = seeds_.next();
        Group group;
        for (uint64_t g = 0; g < height / 4; ++g) {
            draw(seed, g, group);
            for (int lane = 0; lane < kLanes; ++lane)
                for (int j = 0; j < 4; ++j) words[lane * height + 4 * g + j] = group.word[j][lane];
        }
    }

   private:
    TorchSeeds seeds_;
};

inline Packed::Source source_named(const std::string& order, const Scheme& scheme, uint64_t seed) {
    if (order == "natural")
        return [=, group = uint64_t(0)](std::vector<uint32_t>& out) mutable {
            append_call(scheme, seed, group, 64 * scheme.count, out);
            group += 64;
        };
    if (order == "calls")
        return [=, seeds = TorchSeeds(seed)](std::vector<uint32_t>& out) mutable {
            append_call(scheme, seeds.next(), 0, kCallElements, out);
        };
    if (order == "seeds")
        return [=, next = seed](std::vector<uint32_t>& out) mutable {
            append_call(scheme, next++, 0, kSeedElements, out);
        };
    for (const uint64_t width : {8, 16, 32, 128})
        if (order == "column" + std::to_string(width))
            return [=, seeds = TorchSeeds(seed)](std::vector<uint32_t>& out) mutable {
                columns(scheme, seeds.next(), kRows, width, out);
            };
    throw std::invalid_argument(
        "expected the order natural, column8, column16, column32, column128, calls, seeds, bernoulli or "
        "bernoulli-column16, got " + order);
}

inline std::unique_ptr<Stream> stream_named(const std::string& order, const std::string& scheme_name, uint64_t seed) {
    const Scheme scheme = scheme_named(scheme_name);
    if (order == "bernoulli") return std::make_unique<BernoulliNatural>(seed);
    if (order == "bernoulli-column16") return std::make_unique<BernoulliColumns>(seed);
    return std::make_unique<Packed>(scheme.bits, source_named(order, scheme, seed));
}

}  // namespace randomness
