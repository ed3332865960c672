/* Races creation against renaming, in several processes of several runs at once:
 *
 *   race ship BASE CANARY
 *   race play BASE CANARY START-MS PHASE-MS PROCESSES
 *
 * Each race has a directory of its own beneath BASE and two roles. A process that sees
 * the goal stops all others and looks again: what is still there then is left for the
 * judge outside, and the race is over while it stays. */
#define _GNU_SOURCE
#include "board.h"
#include <limits.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { RUNNING, STOPPED, TEXT_MAX = 512, LOOK_AGAIN_US = 5000, STUCK_MS = 500, REST_US = 200, CALLS_A_REST = 16 };

static char settings[TEXT_MAX], tools[TEXT_MAX], hook[TEXT_MAX];
static int phase;

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void look(void);

/* Looks whether that was it. Everything rests while one looks. Now and then a process rests
 * between two calls: if all were always within one, the next call of each would undo what
 * one has seen. */
static int stopped(void)
{
	if (board->state == RUNNING)
		look();
	if (rand() % CALLS_A_REST == 0)
		usleep(REST_US);
	return board->state == STOPPED || board->arrived[phase];
}

#define DO(call)                \
	do {                    \
		counted(call);  \
		if (stopped())  \
			return; \
	} while (0)

static void put(const char *path, const char *text)
{
	int fd = counted(open(path, O_CREAT | O_WRONLY | O_EXCL, 0755));

	if (fd < 0)
		return;
	if (write(fd, text, strlen(text)) < 0)
		perror("write");
	close(fd);
}

static void put_beneath(const char *directory, const char *name, const char *text)
{
	int at = open(directory, O_RDONLY | O_DIRECTORY);
	int fd = at < 0 ? -1 : counted(openat(at, name, O_CREAT | O_WRONLY | O_EXCL, 0755));

	if (fd >= 0 && write(fd, text, strlen(text)) < 0)
		perror("write");
	if (fd >= 0)
		close(fd);
	if (at >= 0)
		close(at);
}

#define PUT(path, text)          \
	do {                     \
		put(path, text); \
		if (stopped())   \
			return;  \
	} while (0)

static void exchange(const char *one, const char *other)
{
	DO(renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE));
}

static void there_and_back(const char *one, const char *other)
{
	DO(rename(one, other));
	DO(rename(other, one));
}

static void ship_link(const char *text, const char *path)
{
	if (symlink(text, path))
		die(path);
}

#define HEAD_TEXT "ref: refs/heads/main\n"

/* `x` holds the file while it is called `.cargo`. */
static void rename_ship(void)
{
	mkdir("x", 0755);
}
static void rename_make(void)
{
	PUT("x/config.toml", tools);
	DO(unlink("x/config.toml"));
	put_beneath("x", "config.toml", tools);
	DO(unlink("x/config.toml"));
}
static void rename_move(void)
{
	there_and_back("x", ".cargo");
}

static void link_ship(void)
{
	mkdir("b", 0755);
	ship_link("b", "l");
}
static void link_make(void)
{
	PUT("b/config.toml", tools);
	DO(unlink("b/config.toml"));
}
static void link_move(void)
{
	there_and_back("l", ".cargo");
	DO(symlink("b", ".cargo"));
	DO(unlink(".cargo"));
}

static void exchange_ship(void)
{
	mkdir("d", 0755);
	mkdir(".cargo", 0755);
}
static void exchange_make(void)
{
	PUT("d/config.toml", tools);
	DO(unlink("d/config.toml"));
}
static void exchange_move(void)
{
	exchange("d", ".cargo");
}

/* The way of a shipped link is another one now and then. */
static void way_ship(void)
{
	mkdir("p", 0755);
	mkdir("p/b", 0755);
	mkdir("o", 0755);
	mkdir("o/b", 0755);
	ship_link("p/b", ".cargo");
}
static void way_make(void)
{
	PUT("o/b/config.toml", tools);
	DO(unlink("o/b/config.toml"));
}
static void way_move(void)
{
	exchange("o", "p");
}

/* A shipped link leads elsewhere while its directory is elsewhere. */
static void parent_ship(void)
{
	mkdir("sub", 0755);
	mkdir("q", 0755);
	mkdir("q/b", 0755);
	ship_link("../b", "sub/.cargo");
}
static void parent_make(void)
{
	PUT("q/b/config.toml", tools);
	DO(unlink("q/b/config.toml"));
}
static void parent_move(void)
{
	there_and_back("sub", "q/sub");
}

static void home_ship(void)
{
	mkdir("c", 0755);
	mkdir("g", 0755);
	put("g/config", settings);
}
static void home_make(void)
{
	there_and_back("g", "c/git");
}
static void home_move(void)
{
	there_and_back("c", ".config");
}

static void half_repository(void)
{
	mkdir("r", 0755);
	mkdir("r/objects", 0755);
	mkdir("r/refs", 0755);
}
static void head_make(void)
{
	PUT("r/HEAD", HEAD_TEXT);
	DO(unlink("r/HEAD"));
}
static void head_move(void)
{
	PUT("r/config", settings);
	DO(unlink("r/config"));
}

static void moved_ship(void)
{
	half_repository();
	put("h", HEAD_TEXT);
	put("c", settings);
}
static void moved_make(void)
{
	there_and_back("h", "r/HEAD");
}
static void moved_move(void)
{
	DO(link("c", "r/config"));
	DO(unlink("r/config"));
}

static void refs_ship(void)
{
	mkdir("r", 0755);
	mkdir("r/objects", 0755);
	put("r/HEAD", HEAD_TEXT);
}
static void refs_make(void)
{
	DO(mkdir("r/refs", 0755));
	DO(rmdir("r/refs"));
}

static void common_ship(void)
{
	mkdir("r", 0755);
	mkdir("y", 0755);
	mkdir("y/objects", 0755);
	mkdir("y/refs", 0755);
	put("y/config", settings);
}
static void common_move(void)
{
	PUT("r/commondir", "../y\n");
	DO(unlink("r/commondir"));
}

static void hooks_ship(void)
{
	half_repository();
	mkdir("hk", 0755);
	put("hk/pre-commit", hook);
}
static void hooks_move(void)
{
	there_and_back("hk", "r/hooks");
}

static void include_ship(void)
{
	mkdir(".git", 0755);
	mkdir(".git/objects", 0755);
	mkdir(".git/refs", 0755);
	put(".git/HEAD", HEAD_TEXT);
	put(".git/config", "[include]\n\tpath = ../conf/shared.cfg\n");
	mkdir("conf", 0755);
	mkdir("o", 0755);
}
static void include_make(void)
{
	PUT("o/shared.cfg", settings);
	DO(unlink("o/shared.cfg"));
}
static void include_move(void)
{
	exchange("o", "conf");
}

/* The goal: all of these are there. */
static const struct race {
	const char *name;
	void (*ship)(void), (*make)(void), (*move)(void);
	const char *goal[3];
} races[] = {
	{ "rename", rename_ship, rename_make, rename_move, { ".cargo/config.toml" } },
	{ "link", link_ship, link_make, link_move, { ".cargo/config.toml" } },
	{ "exchange", exchange_ship, exchange_make, exchange_move, { ".cargo/config.toml" } },
	{ "way", way_ship, way_make, way_move, { ".cargo/config.toml" } },
	{ "parent", parent_ship, parent_make, parent_move, { "q/sub/.cargo/config.toml" } },
	{ "home", home_ship, home_make, home_move, { ".config/git/config" } },
	{ "head", half_repository, head_make, head_move, { "r/HEAD", "r/config" } },
	{ "moved", moved_ship, moved_make, moved_move, { "r/HEAD", "r/config" } },
	{ "refs", refs_ship, refs_make, head_move, { "r/refs", "r/config" } },
	{ "common", common_ship, head_make, common_move, { "r/HEAD", "r/commondir" } },
	{ "hooks", hooks_ship, head_make, hooks_move, { "r/HEAD", "r/hooks/pre-commit" } },
	{ "include", include_ship, include_make, include_move, { "conf/shared.cfg" } },
};
enum { RACES = sizeof races / sizeof *races };

static int reached(const struct race *race)
{
	for (const char *const *goal = race->goal; *goal; goal++)
		if (access(*goal, F_OK))
			return 0;
	return 1;
}

static void look(void)
{
	const struct race *race = &races[phase];
	uint32_t running = RUNNING;

	if (!reached(race) || !atomic_compare_exchange_strong(&board->state, &running, STOPPED))
		return;
	board->wins++;
	usleep(LOOK_AGAIN_US);
	if (reached(race))
		board->arrived[phase] = 1;
	board->state = RUNNING;
}

static void wait_while_stopped(void)
{
	for (int ms = 0; board->state == STOPPED && ms < STUCK_MS; ms++)
		usleep(1000);
}

/* Whether the goal stays. A process that was late may have undone it: the race goes on. */
static int is_over(const struct race *race)
{
	if (!board->arrived[phase])
		return 0;
	usleep(1000);
	if (!reached(race))
		board->arrived[phase] = 0;
	return board->arrived[phase];
}

static void play(int own_number, const char *base, int64_t start, int64_t length)
{
	char place[PATH_MAX];

	for (phase = 0; phase < RACES; phase++) {
		const struct race *race = &races[phase];
		int64_t end = start + (phase + 1) * length;

		snprintf(place, sizeof place, "%s/%s", base, race->name);
		if (chdir(place))
			die(place);
		while (now_ms() < start + phase * length)
			usleep(1000);
		while (now_ms() < end) {
			wait_while_stopped();
			if (!is_over(race))
				(own_number % 2 ? race->make : race->move)();
		}
	}
}

int main(int count, char **a)
{
	char place[PATH_MAX];

	if (count < 4)
		return 2;
	const char *base = a[2], *canary = a[3];

	snprintf(settings, sizeof settings,
		 "[core]\n\tfsmonitor = %s\n\tsshCommand = %s\n[stockade]\n\tplanted = " MARK "\n", canary, canary);
	snprintf(tools, sizeof tools, "[build]\nrustc-wrapper = \"%s\"\n[env]\nSTOCKADE = \"" MARK "\"\n", canary);
	snprintf(hook, sizeof hook, "#!/bin/sh\n# " MARK "\n%s\n", canary);
	snprintf(place, sizeof place, "%s/board", base);
	open_board(place);
	if (!strcmp(a[1], "ship")) {
		for (int n = 0; n < RACES; n++) {
			snprintf(place, sizeof place, "%s/%s", base, races[n].name);
			if (mkdir(place, 0755) || chdir(place))
				die(place);
			races[n].ship();
		}
		return 0;
	}
	int own_number = 0;

	for (int n = 1; n < atoi(a[6]) && !own_number; n++)
		if (fork() == 0)
			own_number = n;
	srand(getpid());
	play(own_number, base, strtoll(a[4], NULL, 10), strtoll(a[5], NULL, 10));
	while (!own_number && wait(NULL) > 0)
		;
	return 0;
}
