// streams ORDER [--seed S] [--scheme independent|borrowed] [--bytes N]: writes the bit stream of streams.h to standard
// output, as little-endian 32-bit words, until N bytes are written or nobody reads on.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "options.h"
#include "streams.h"

static bool write_all(const char* data, size_t size) {
    while (size > 0) {
        const ssize_t written = write(STDOUT_FILENO, data, size);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        data += written;
        size -= size_t(written);
    }
    return true;
}

int main(int argc, char** argv) try {
    signal(SIGPIPE, SIG_IGN);
    const auto options = randomness::Options(argc, argv, {"--seed", "--scheme", "--bytes"}, 1);
    const auto stream = randomness::stream_named(
        options.positional(0), options.text("--scheme", "independent"), options.number("--seed", 1));
    uint64_t left = options.number("--bytes", UINT64_MAX);
    while (left > 0) {
        const auto& words = stream->chunk();
        const uint64_t size = std::min<uint64_t>(left, 4 * words.size());
        if (!write_all(reinterpret_cast<const char*>(words.data()), size)) break;
        left -= size;
    }
} catch (const std::exception& error) {
    std::fprintf(stderr, "streams: %s\n", error.what());
    return 2;
}
