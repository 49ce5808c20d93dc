// battery smallcrush|crush ORDER --test K [--seed S] [--scheme independent|borrowed]: runs test K of a battery of
// TestU01 on the words of a stream, and prints as its last line {"statistics": [[name, p-value], ...]}.
#include <cstdio>
#include <string>

#include "options.h"
#include "streams.h"

extern "C" {
#include "bbattery.h"
#include "swrite.h"
#include "unif01.h"
}

static std::unique_ptr<randomness::Stream> stream;

static unsigned int word() { return stream->next(); }

int main(int argc, char** argv) try {
    const auto options = randomness::Options(argc, argv, {"--seed", "--scheme", "--test"}, 2);
    const std::string battery = options.positional(0);
    const bool small = battery == "smallcrush";
    if (!small && battery != "crush") throw std::invalid_argument("expected smallcrush or crush, got " + battery);
    const uint64_t test = options.number("--test", 0), tests = small ? 10 : 96;
    if (test < 1 || test > tests)
        throw std::invalid_argument("expected --test from 1 to " + std::to_string(tests) + ", got " +
                                    std::to_string(test));
    stream = randomness::stream_named(
        options.positional(1), options.text("--scheme", "independent"), options.number("--seed", 1));
    swrite_Basic = FALSE;
    char name[] = "contdrop";
    unif01_Gen* const generator = unif01_CreateExternGenBits(name, word);
    int repeat[201] = {0};
    repeat[test] = 1;
    (small ? bbattery_RepeatSmallCrush : bbattery_RepeatCrush)(generator, repeat);
    std::printf("{\"statistics\": [");
    for (int j = 0; j < bbattery_NTests; ++j)
        std::printf("%s[\"%s\", %.17g]", j ? ", " : "", bbattery_TestNames[j], bbattery_pVal[j]);
    std::printf("]}\n");
    unif01_DeleteExternGenBits(generator);
} catch (const std::exception& error) {
    std::fprintf(stderr, "battery: %s\n", error.what());
    return 2;
}
