/* Plays random creations, moves, links, exchanges and removals in many trees:
 *
 *   play ship KIND BASE FIRST COUNT SEED CANARY
 *   play play KIND BASE FIRST COUNT SEED CANARY RUN PROCESSES TOTAL ROUNDS
 *
 * KIND is git, cargo or npm; tree N is BASE/tN/r. `ship` makes what the person has
 * there before. `play` is one of several runs in the same trees; TOTAL is the number of
 * processes of all runs, which meet at each tree. */
#define _GNU_SOURCE
#include "board.h"
#include <limits.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { TEXT_MAX = 512, MEET_TIMEOUT_MS = 50, PIECES_MAX = 8 };

static const char *canary;
static uint64_t random_state, tree_state;
static int aside_number, own_number;
static enum { GIT, CARGO, NPM } kind;

static uint64_t next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static int below(int limit)
{
	return next(&random_state) % limit;
}

static int chance(int percent)
{
	return below(100) < percent;
}

#define ANY(list) (list)[below(sizeof(list) / sizeof *(list))]

static const char *const git_names[] = { "HEAD", "objects", "refs", "config", "hooks", "commondir", "gitdir",
					 "config.worktree", ".git", "a", "b", "x", "meta", "shared.cfg", "hooks2",
					 "pre-commit", ".config", "git" };
static const char *const git_directories[] = { "a", "b", "x", "meta", "meta", ".git", "hooks", "hooks2", ".config", "a/b",
					       "b/a", "..", "objects" };
static const char *const cargo_names[] = { ".cargo", "config.toml", "config", "b", "c", "x", "sub", "q", "l1", "p", "x.toml" };
static const char *const cargo_directories[] = { "b", "c", ".cargo", "sub", "q", "q/sub", "p", "p/b", "sub/.cargo", ".." };
static const char *const npm_names[] = { ".npmrc", "b", "c", "x", "sub", "q", "p", "node_modules" };
static const char *const npm_directories[] = { "b", "c", "sub", "q", "q/sub", "p", ".." };

static const char *any_name(void)
{
	return kind == GIT ? ANY(git_names) : kind == CARGO ? ANY(cargo_names) : ANY(npm_names);
}

static const char *any_directory(void)
{
	return kind == GIT ? ANY(git_directories) : kind == CARGO ? ANY(cargo_directories) : ANY(npm_directories);
}

static void any_path(char *path)
{
	int depth = below(100);

	if (depth < 45)
		snprintf(path, TEXT_MAX, "%s", any_name());
	else if (depth < 90)
		snprintf(path, TEXT_MAX, "%s/%s", any_directory(), any_name());
	else
		snprintf(path, TEXT_MAX, "%s/%s/%s", any_directory(), any_name(), any_name());
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

enum content { SETTINGS, HEAD_FILE, COMMONDIR, GITFILE, HOOK };

static enum content content_of(const char *path)
{
	const char *name = last_part(path);

	if (!strcmp(name, "HEAD"))
		return HEAD_FILE;
	if (!strcmp(name, "commondir"))
		return COMMONDIR;
	if (!strcmp(name, ".git") || !strcmp(name, "gitdir"))
		return GITFILE;
	if (!strcmp(name, "pre-commit"))
		return HOOK;
	if (kind != GIT || strstr(name, "config") || strstr(name, ".cfg"))
		return SETTINGS;
	return (enum content[]){ SETTINGS, SETTINGS, HEAD_FILE, COMMONDIR, GITFILE, HOOK }[below(6)];
}

static size_t fill(char *text, enum content content)
{
	static const char *const siblings[] = { "a", "b", "x", "meta" };

	switch (content) {
	case HEAD_FILE:
		return snprintf(text, TEXT_MAX, "ref: refs/heads/main\n");
	case COMMONDIR:
		return snprintf(text, TEXT_MAX, "../%s\n", ANY(siblings));
	case GITFILE:
		return snprintf(text, TEXT_MAX, "gitdir: %s%s\n", chance(50) ? "../" : "", ANY(siblings));
	case HOOK:
		return snprintf(text, TEXT_MAX, "#!/bin/sh\n# " MARK "\n%s\n", canary);
	default:
		break;
	}
	if (kind == CARGO)
		return snprintf(text, TEXT_MAX, "[build]\nrustc-wrapper = \"%s\"\n[env]\nSTOCKADE = \"" MARK "\"\n", canary);
	if (kind == NPM)
		return snprintf(text, TEXT_MAX, "script-shell=%s\nstockade=" MARK "\n", canary);
	return snprintf(text, TEXT_MAX, "[core]\n\tfsmonitor = %s\n\tsshCommand = %s\n[stockade]\n\tplanted = " MARK "\n", canary,
			canary);
}

static void make_file(const char *path, enum content content)
{
	char text[TEXT_MAX];
	size_t length = fill(text, content);
	int how = below(10);
	int flags = how < 6 ? O_CREAT | O_WRONLY | O_TRUNC : how < 8 ? O_CREAT | O_EXCL | O_WRONLY : O_WRONLY | O_TRUNC;
	int fd;

	if (how == 9) {
		/* The file exists a while without its content. */
		fd = counted(mknod(path, S_IFREG | 0755, 0)) ? -1 : counted(open(path, O_WRONLY));
	} else {
		fd = counted(open(path, flags, content == HOOK ? 0755 : 0644));
	}
	if (fd < 0)
		return;
	if (write(fd, text, length) < 0)
		perror("write");
	close(fd);
}

/* A file without a name gets one. */
static void make_unnamed(const char *path, enum content content)
{
	char text[TEXT_MAX], own[64];
	size_t length = fill(text, content);
	int fd = counted(open(".", O_TMPFILE | O_RDWR, 0755));

	if (fd < 0)
		return;
	if (write(fd, text, length) < 0)
		perror("write");
	snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
	counted(linkat(AT_FDCWD, own, AT_FDCWD, path, AT_SYMLINK_FOLLOW));
	close(fd);
}

static void link_text(char *text)
{
	int form = below(100);

	if (form < 35)
		snprintf(text, TEXT_MAX, "%s", any_name());
	else if (form < 60)
		snprintf(text, TEXT_MAX, "../%s", any_name());
	else if (form < 80)
		snprintf(text, TEXT_MAX, "%s/%s", any_directory(), any_name());
	else if (form < 90)
		snprintf(text, TEXT_MAX, "../%s/%s", any_directory(), any_name());
	else
		snprintf(text, TEXT_MAX, "%s", chance(50) ? "." : "..");
}

static void random_act(void)
{
	char one[TEXT_MAX], other[TEXT_MAX];
	int which = below(100);

	any_path(one);
	any_path(other);
	if (which < 26)
		make_file(one, content_of(one));
	else if (which < 40)
		counted(mkdir(one, 0755));
	else if (which < 54) {
		link_text(other);
		counted(symlink(other, one));
	} else if (which < 74)
		counted(rename(one, other));
	else if (which < 81)
		counted(renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE));
	else if (which < 88)
		counted(linkat(AT_FDCWD, one, AT_FDCWD, other, chance(20) ? AT_SYMLINK_FOLLOW : 0));
	else if (which < 94)
		counted(unlink(one));
	else if (which < 96)
		counted(rmdir(one));
	else
		make_unnamed(one, content_of(one));
}

static void aside(char *path)
{
	snprintf(path, TEXT_MAX, "z%d.%d", own_number, aside_number++);
}

static void make_plain(const char *path, const char *name)
{
	if (!strcmp(name, "objects") || !strcmp(name, "refs"))
		counted(mkdir(path, 0755));
	else
		make_file(path, content_of(name));
}

/* Makes one part of something, at its place or elsewhere and then moved there. */
static void make_piece(const char *path, const char *name)
{
	char made[TEXT_MAX], text[TEXT_MAX + 8];
	int is_directory = !strcmp(name, "objects") || !strcmp(name, "refs");

	aside(made);
	switch (below(is_directory ? 5 : 7)) {
	case 0:
	case 1:
		make_plain(path, name);
		break;
	case 2:
		make_plain(made, name);
		counted(rename(made, path));
		break;
	case 3:
		make_plain(made, name);
		make_plain(path, name);
		counted(renameat2(AT_FDCWD, made, AT_FDCWD, path, RENAME_EXCHANGE));
		break;
	case 4:
		snprintf(text, sizeof text, "%s%s", strchr(path, '/') ? "../" : "", made);
		if (chance(50))
			make_plain(made, name);
		counted(symlink(text, path));
		make_plain(made, name);
		break;
	case 5:
		make_plain(made, name);
		counted(link(made, path));
		break;
	default:
		make_unnamed(path, content_of(name));
	}
}

/* The directory that all processes work at in this tree, mostly. */
static const char *target_directory(void)
{
	static const char *const places[] = { "a", "b", "x", "meta" };

	return chance(75) ? places[tree_state % 4] : ANY(places);
}

static void make_pieces(char pieces[][2][TEXT_MAX], int count)
{
	while (count > 0) {
		int chosen = below(count);

		make_piece(pieces[chosen][0], pieces[chosen][1]);
		memcpy(pieces[chosen], pieces[--count], sizeof pieces[0]);
		if (chance(15))
			random_act();
	}
}

static void add_piece(char pieces[][2][TEXT_MAX], int *count, const char *directory, const char *path, const char *name)
{
	snprintf(pieces[*count][0], TEXT_MAX, "%s/%s", directory, path);
	snprintf(pieces[(*count)++][1], TEXT_MAX, "%s", name);
}

static void assemble_repository(void)
{
	char pieces[PIECES_MAX][2][TEXT_MAX];
	char made[TEXT_MAX];
	const char *directory = target_directory();
	const char *common = directory;
	int count = 0;
	int late = chance(25);

	if (chance(30))
		common = target_directory();
	aside(made);
	counted(mkdir(late ? made : directory, 0755));
	counted(mkdir(common, 0755));
	add_piece(pieces, &count, late ? made : directory, "HEAD", "HEAD");
	if (strcmp(common, directory))
		add_piece(pieces, &count, late ? made : directory, "commondir", "commondir");
	add_piece(pieces, &count, late && common == directory ? made : common, "objects", "objects");
	add_piece(pieces, &count, late && common == directory ? made : common, "refs", "refs");
	if (chance(75)) {
		add_piece(pieces, &count, late && common == directory ? made : common, "config", "config");
	} else {
		char hooks[TEXT_MAX + 8];

		snprintf(hooks, sizeof hooks, "%s/hooks", late && common == directory ? made : common);
		counted(mkdir(hooks, 0755));
		add_piece(pieces, &count, late && common == directory ? made : common, "hooks/pre-commit", "pre-commit");
	}
	if (chance(20))
		add_piece(pieces, &count, late ? made : directory, "config.worktree", "config.worktree");
	make_pieces(pieces, count);
	if (late)
		counted(rename(made, directory));
	if (chance(20))
		counted(rename(directory, target_directory()));
}

static void use_indirection(void)
{
	if (chance(50)) {
		make_piece("shared.cfg", "shared.cfg");
		return;
	}
	counted(mkdir(chance(50) ? "hooks2" : "b", 0755));
	make_piece(chance(70) ? "hooks2/pre-commit" : "b/pre-commit", "pre-commit");
	if (chance(50))
		counted(rename("b", "hooks2"));
}

/* A directory with the file gets the guarded name, or a link of that name leads to it. */
static void plant_cargo(void)
{
	static const char *const parents[] = { "", "", "sub/", "q/" };
	const char *parent = ANY(parents);
	const char *leaf = chance(70) ? "config.toml" : "config";
	char guarded[TEXT_MAX], made[TEXT_MAX], path[TEXT_MAX * 2], text[TEXT_MAX + 8];

	if (*parent)
		counted(mkdir(chance(50) ? "sub" : "q", 0755));
	snprintf(guarded, sizeof guarded, "%s.cargo", parent);
	if (chance(40))
		snprintf(made, sizeof made, "%s", chance(60) ? "b" : "c");
	else
		aside(made);
	snprintf(text, sizeof text, "%s%s", *parent ? "../" : "", made);
	switch (below(6)) {
	case 0:
		counted(mkdir(guarded, 0755));
		snprintf(path, sizeof path, "%s/%s", guarded, leaf);
		make_piece(path, leaf);
		return;
	case 1:
		counted(symlink(text, guarded));
		counted(mkdir(made, 0755));
		break;
	case 2:
		counted(mkdir(made, 0755));
		counted(symlink(text, guarded));
		break;
	default:
		counted(mkdir(made, 0755));
	}
	snprintf(path, sizeof path, "%s/%s", made, leaf);
	make_piece(path, leaf);
	switch (below(6)) {
	case 0:
		counted(rename(made, guarded));
		break;
	case 1:
		counted(mkdir(guarded, 0755));
		counted(renameat2(AT_FDCWD, made, AT_FDCWD, guarded, RENAME_EXCHANGE));
		break;
	case 2:
		counted(symlink(text, guarded));
		break;
	case 3:
		counted(symlink(text, "y"));
		counted(rename("y", guarded));
		break;
	case 4:
		counted(rename("sub", "q/sub"));
		break;
	default:
		counted(rename(made, "b"));
	}
}

static void plant_npm(void)
{
	static const char *const guarded[] = { ".npmrc", "sub/.npmrc", "q/.npmrc" };
	static const char *const targets[] = { "x", "x", "q/x", "p/x", "b" };

	switch (below(5)) {
	case 0:
		make_piece(ANY(guarded), ".npmrc");
		break;
	case 1:
		make_piece(ANY(targets), ".npmrc");
		counted(symlink(chance(50) ? "x" : "../x", ANY(guarded)));
		break;
	case 2:
		counted(mkdir(chance(50) ? "q" : "p", 0755));
		make_piece(ANY(targets), ".npmrc");
		counted(rename("sub", chance(50) ? "q/sub" : "p/sub"));
		break;
	case 3:
		counted(link("x", "b"));
		make_file("b", SETTINGS);
		break;
	default:
		make_piece(ANY(targets), ".npmrc");
	}
}

static void play_round(void)
{
	int which = below(100);

	if (which < 45)
		random_act();
	else if (kind == CARGO)
		plant_cargo();
	else if (kind == NPM)
		plant_npm();
	else if (which < 85)
		assemble_repository();
	else
		use_indirection();
}

static void must(int result, const char *what)
{
	if (result)
		die(what);
}

static void write_plain(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	if (!file || fputs(text, file) < 0 || fclose(file))
		die(path);
}

static void ship_repository(const char *directory, const char *settings)
{
	char path[TEXT_MAX];

	must(mkdir(directory, 0755), directory);
	for (const char *const *part = (const char *const[]){ "objects", "refs", "hooks", NULL }; *part; part++) {
		snprintf(path, sizeof path, "%s/%s", directory, *part);
		must(mkdir(path, 0755), path);
	}
	snprintf(path, sizeof path, "%s/HEAD", directory);
	write_plain(path, "ref: refs/heads/main\n");
	snprintf(path, sizeof path, "%s/config", directory);
	write_plain(path, settings);
}

static void ship_git(int form)
{
	switch (form) {
	case 1:
		ship_repository(".git", "[core]\n\thooksPath = hooks2\n[include]\n\tpath = ../shared.cfg\n");
		break;
	case 2:
		write_plain(".git", "gitdir: meta\n");
		break;
	case 3:
		must(symlink("a", ".git"), "link");
		break;
	case 4:
		must(mkdir("a", 0755) || mkdir("a/objects", 0755), "a");
		write_plain("a/HEAD", "ref: refs/heads/main\n");
		break;
	case 5:
		must(mkdir("b", 0755), "b");
		write_plain("b/.git", "gitdir: ../meta\n");
		break;
	case 6:
		ship_repository("a", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n");
		break;
	case 7:
		ship_repository("meta", "[core]\n\tbare = false\n");
		write_plain(".git", "gitdir: meta\n");
		must(symlink("b", ".config"), "link");
	}
}

static void ship_cargo(int form)
{
	must(mkdir("sub", 0755) || mkdir("q", 0755), "sub");
	switch (form) {
	case 1:
		must(symlink("b", ".cargo"), "link");
		break;
	case 2:
		must(symlink("../b", "sub/.cargo"), "link");
		break;
	case 3:
		must(mkdir("p", 0755) || mkdir("p/b", 0755), "p");
		must(symlink("l1", ".cargo") || symlink("p/b", "l1"), "link");
		break;
	case 4:
		must(mkdir(".cargo", 0755), "directory");
		break;
	case 5:
		must(mkdir(".cargo", 0755) || symlink("../x.toml", ".cargo/config.toml"), "link");
	}
}

static void ship_npm(int form)
{
	must(mkdir("sub", 0755), "sub");
	switch (form) {
	case 1:
		must(symlink("x", ".npmrc"), "link");
		break;
	case 2:
		must(symlink("../x", "sub/.npmrc"), "link");
		break;
	case 3:
		write_plain(".npmrc", "fund=false\n");
		must(link(".npmrc", "x"), "link");
		break;
	case 4:
		must(mkdir("p", 0755) || symlink("../p/x", "sub/.npmrc"), "link");
	}
}

static void ship(int tree)
{
	char text[TEXT_MAX];

	switch (kind) {
	case GIT:
		ship_git(tree % 8);
		break;
	case CARGO:
		ship_cargo(tree % 6);
		break;
	case NPM:
		ship_npm(tree % 5);
	}
	/* A repository may ship what is harmless at its place. */
	if (tree % 3 == 0 && access("x", F_OK) && !(kind == NPM && tree % 5 <= 3)) {
		fill(text, SETTINGS);
		write_plain("x", text);
	}
}

/* Waits, within bounds, until all processes have come to this tree. */
static void meet(int at, uint32_t total)
{
	struct timespec pause = { .tv_nsec = 100000 };

	board->arrived[at]++;
	for (int n = 0; n < MEET_TIMEOUT_MS * 10 && board->arrived[at] < total; n++)
		nanosleep(&pause, NULL);
}

int main(int count, char **a)
{
	char place[PATH_MAX];

	if (count != 8 && count != 12)
		return 2;
	int playing = count == 12;
	const char *base = a[3];
	int first = atoi(a[4]), trees = atoi(a[5]), rounds = 0, run = 0;
	uint64_t seed = strtoull(a[6], NULL, 10);
	uint32_t total = 0;

	canary = a[7];
	kind = !strcmp(a[2], "git") ? GIT : !strcmp(a[2], "cargo") ? CARGO : NPM;
	if (playing) {
		run = atoi(a[8]);
		total = atoi(a[10]);
		rounds = atoi(a[11]);
		snprintf(place, sizeof place, "%s/board", base);
		open_board(place);
		for (int n = 1; n < atoi(a[9]) && !own_number; n++)
			if (fork() == 0)
				own_number = n;
		own_number += 100 * run;
	}
	for (int n = 0; n < trees; n++) {
		int tree = first + n;

		tree_state = seed * 1000003 + tree;
		random_state = tree_state ^ (uint64_t)(own_number + 1) << 32;
		tree_state = next(&tree_state);
		next(&random_state);
		snprintf(place, sizeof place, "%s/t%d", base, tree);
		if (!playing)
			must(mkdir(place, 0755), place);
		strcat(place, "/r");
		if (!playing)
			must(mkdir(place, 0755), place);
		if (chdir(place)) {
			/* Another one may have moved it, through a link. */
			continue;
		}
		if (!playing) {
			ship(tree);
			continue;
		}
		meet(n, total);
		for (int round = 0; round < rounds; round++)
			play_round();
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
