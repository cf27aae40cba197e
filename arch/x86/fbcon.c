/*
 * Text on the framebuffer: a 5x7 font, each row drawn twice, in cells of 6x16 pixels. At the bottom
 * it goes on at the top: scrolling would read the whole screen back, which no cache helps with.
 */
#include "arch/platform.h"
#include "arch/x86/arch.h"

#define CELL_W      6u
#define CELL_H      16u
#define GLYPH_ROWS  7u
#define GLYPH_COLS  5u
#define GLYPH_TOP   1u
#define INK         0x00d0d0d0u
#define PAPER       0x00101010u
#define FIRST_GLYPH ' '
#define LAST_GLYPH  '~'

/* Rows from the top, bit 4 is the left column. */
static const uint8_t font[LAST_GLYPH - FIRST_GLYPH + 1][GLYPH_ROWS] = {
        {0, 0, 0, 0, 0, 0, 0},        /* space */
        {4, 4, 4, 4, 4, 0, 4},        /* ! */
        {10, 10, 10, 0, 0, 0, 0},     /* " */
        {10, 10, 31, 10, 31, 10, 10}, /* # */
        {4, 15, 20, 14, 5, 30, 4},    /* $ */
        {24, 25, 2, 4, 8, 19, 3},     /* % */
        {12, 18, 20, 8, 21, 18, 13},  /* & */
        {4, 4, 8, 0, 0, 0, 0},        /* ' */
        {2, 4, 8, 8, 8, 4, 2},        /* ( */
        {8, 4, 2, 2, 2, 4, 8},        /* ) */
        {0, 4, 21, 14, 21, 4, 0},     /* * */
        {0, 4, 4, 31, 4, 4, 0},       /* + */
        {0, 0, 0, 0, 4, 4, 8},        /* , */
        {0, 0, 0, 31, 0, 0, 0},       /* - */
        {0, 0, 0, 0, 0, 12, 12},      /* . */
        {0, 1, 2, 4, 8, 16, 0},       /* / */
        {14, 17, 19, 21, 25, 17, 14}, /* 0 */
        {4, 12, 4, 4, 4, 4, 14},      /* 1 */
        {14, 17, 1, 2, 4, 8, 31},     /* 2 */
        {31, 2, 4, 2, 1, 17, 14},     /* 3 */
        {2, 6, 10, 18, 31, 2, 2},     /* 4 */
        {31, 16, 30, 1, 1, 17, 14},   /* 5 */
        {6, 8, 16, 30, 17, 17, 14},   /* 6 */
        {31, 1, 2, 4, 8, 8, 8},       /* 7 */
        {14, 17, 17, 14, 17, 17, 14}, /* 8 */
        {14, 17, 17, 15, 1, 2, 12},   /* 9 */
        {0, 12, 12, 0, 12, 12, 0},    /* : */
        {0, 12, 12, 0, 12, 4, 8},     /* ; */
        {2, 4, 8, 16, 8, 4, 2},       /* < */
        {0, 0, 31, 0, 31, 0, 0},      /* = */
        {8, 4, 2, 1, 2, 4, 8},        /* > */
        {14, 17, 1, 2, 4, 0, 4},      /* ? */
        {14, 17, 23, 21, 22, 16, 15}, /* @ */
        {14, 17, 17, 31, 17, 17, 17}, /* A */
        {30, 17, 17, 30, 17, 17, 30}, /* B */
        {14, 17, 16, 16, 16, 17, 14}, /* C */
        {28, 18, 17, 17, 17, 18, 28}, /* D */
        {31, 16, 16, 30, 16, 16, 31}, /* E */
        {31, 16, 16, 30, 16, 16, 16}, /* F */
        {14, 17, 16, 23, 17, 17, 15}, /* G */
        {17, 17, 17, 31, 17, 17, 17}, /* H */
        {14, 4, 4, 4, 4, 4, 14},      /* I */
        {7, 2, 2, 2, 2, 18, 12},      /* J */
        {17, 18, 20, 24, 20, 18, 17}, /* K */
        {16, 16, 16, 16, 16, 16, 31}, /* L */
        {17, 27, 21, 21, 17, 17, 17}, /* M */
        {17, 25, 21, 19, 17, 17, 17}, /* N */
        {14, 17, 17, 17, 17, 17, 14}, /* O */
        {30, 17, 17, 30, 16, 16, 16}, /* P */
        {14, 17, 17, 17, 21, 18, 13}, /* Q */
        {30, 17, 17, 30, 20, 18, 17}, /* R */
        {15, 16, 16, 14, 1, 1, 30},   /* S */
        {31, 4, 4, 4, 4, 4, 4},       /* T */
        {17, 17, 17, 17, 17, 17, 14}, /* U */
        {17, 17, 17, 17, 17, 10, 4},  /* V */
        {17, 17, 17, 21, 21, 21, 10}, /* W */
        {17, 17, 10, 4, 10, 17, 17},  /* X */
        {17, 17, 10, 4, 4, 4, 4},     /* Y */
        {31, 1, 2, 4, 8, 16, 31},     /* Z */
        {14, 8, 8, 8, 8, 8, 14},      /* [ */
        {0, 16, 8, 4, 2, 1, 0},       /* \ */
        {14, 2, 2, 2, 2, 2, 14},      /* ] */
        {4, 10, 17, 0, 0, 0, 0},      /* ^ */
        {0, 0, 0, 0, 0, 0, 31},       /* _ */
        {8, 4, 2, 0, 0, 0, 0},        /* ` */
        {0, 0, 14, 1, 15, 17, 15},    /* a */
        {16, 16, 30, 17, 17, 17, 30}, /* b */
        {0, 0, 14, 16, 16, 17, 14},   /* c */
        {1, 1, 15, 17, 17, 17, 15},   /* d */
        {0, 0, 14, 17, 31, 16, 14},   /* e */
        {6, 9, 8, 28, 8, 8, 8},       /* f */
        {0, 15, 17, 17, 15, 1, 14},   /* g */
        {16, 16, 22, 25, 17, 17, 17}, /* h */
        {4, 0, 12, 4, 4, 4, 14},      /* i */
        {2, 0, 6, 2, 2, 18, 12},      /* j */
        {16, 16, 18, 20, 24, 20, 18}, /* k */
        {12, 4, 4, 4, 4, 4, 14},      /* l */
        {0, 0, 26, 21, 21, 17, 17},   /* m */
        {0, 0, 22, 25, 17, 17, 17},   /* n */
        {0, 0, 14, 17, 17, 17, 14},   /* o */
        {0, 0, 30, 17, 30, 16, 16},   /* p */
        {0, 0, 13, 19, 15, 1, 1},     /* q */
        {0, 0, 22, 25, 16, 16, 16},   /* r */
        {0, 0, 14, 16, 14, 1, 30},    /* s */
        {8, 8, 28, 8, 8, 9, 6},       /* t */
        {0, 0, 17, 17, 17, 19, 13},   /* u */
        {0, 0, 17, 17, 17, 10, 4},    /* v */
        {0, 0, 17, 17, 21, 21, 10},   /* w */
        {0, 0, 17, 10, 4, 10, 17},    /* x */
        {0, 0, 17, 17, 15, 1, 14},    /* y */
        {0, 0, 31, 2, 4, 8, 31},      /* z */
        {2, 4, 4, 8, 4, 4, 2},        /* { */
        {4, 4, 4, 4, 4, 4, 4},        /* | */
        {8, 4, 4, 2, 4, 4, 8},        /* } */
        {0, 0, 8, 21, 2, 0, 0},       /* ~ */
};

enum escape { ESCAPE_NONE, ESCAPE_STARTED, ESCAPE_CSI };

/* Under the console lock. */
static struct {
	volatile uint32_t *pixel; /* NULL: no screen */
	uint32_t stride_px, cols, rows, col, row;
	enum escape escape;
} con;

static void cell_draw(uint32_t col, uint32_t row, char c)
{
	volatile uint32_t *line = con.pixel + (uint64_t)row * CELL_H * con.stride_px + col * CELL_W;
	const uint8_t *glyph = font[c - FIRST_GLYPH];

	for (uint32_t y = 0; y < CELL_H; y++, line += con.stride_px) {
		uint32_t glyph_row = (y - GLYPH_TOP) / 2; /* above the glyph: a large number */
		uint8_t bits = glyph_row < GLYPH_ROWS ? glyph[glyph_row] : 0;

		for (uint32_t x = 0; x < CELL_W; x++)
			line[x] = x < GLYPH_COLS && (bits << x & BIT(GLYPH_COLS - 1)) ? INK : PAPER;
	}
}

static void row_clear(uint32_t row)
{
	for (uint32_t col = 0; col < con.cols; col++)
		cell_draw(col, row, ' ');
}

static void next_row(void)
{
	con.col = 0;
	con.row = (con.row + 1) % con.rows;
	/* One empty line ahead shows where the newest text ends, and is clean in its turn. */
	row_clear((con.row + 1) % con.rows);
}

/* Colours and cursor movements of guests' consoles are dropped, not shown as rubbish. */
static bool escape_takes(char c)
{
	switch (con.escape) {
	case ESCAPE_STARTED: con.escape = c == '[' ? ESCAPE_CSI : ESCAPE_NONE; return true;
	case ESCAPE_CSI:
		if (c >= '@' && c <= '~')
			con.escape = ESCAPE_NONE;
		return true;
	default:
		if (c == 0x1b)
			con.escape = ESCAPE_STARTED;
		return c == 0x1b;
	}
}

static void put(char c)
{
	if (escape_takes(c))
		return;
	if (c == '\n') {
		next_row();
	} else if (c == '\r') {
		con.col = 0;
	} else if (c == '\b') {
		con.col -= con.col > 0;
	} else if (c >= FIRST_GLYPH && c <= LAST_GLYPH) {
		if (con.col == con.cols)
			next_row();
		cell_draw(con.col++, con.row, c);
	}
}

void fbcon_init(const struct boot_framebuffer *fb)
{
	if (!fb || !fb->base_hpa || fb->width_px < CELL_W || fb->height_px < 2 * CELL_H)
		return;
	con.stride_px = fb->stride_px;
	con.cols = fb->width_px / CELL_W;
	con.rows = fb->height_px / CELL_H;
	con.pixel = (volatile uint32_t *)fb->base_hpa;
	for (uint32_t row = 0; row < con.rows; row++)
		row_clear(row);
}

void fbcon_write(const char *bytes, size_t len_bytes)
{
	if (!con.pixel)
		return;
	for (size_t i = 0; i < len_bytes; i++)
		put(bytes[i]);
}
