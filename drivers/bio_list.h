/*
 * bio_list.h: a first-in first-out list of bios through their next field, for the driver that
 * owns them. One core.
 */
#ifndef QUELL_DRIVERS_BIO_LIST_H
#define QUELL_DRIVERS_BIO_LIST_H

#include "drivers/bio.h"

struct bio_list {
	struct bio *head, *tail; /* tail is valid while head is set */
};

static inline void bio_list_push(struct bio_list *list, struct bio *bio)
{
	bio->next = NULL;
	if (list->head)
		list->tail->next = bio;
	else
		list->head = bio;
	list->tail = bio;
}

/* The oldest, or NULL. */
static inline struct bio *bio_list_pop(struct bio_list *list)
{
	struct bio *bio = list->head;

	if (bio)
		list->head = bio->next;
	return bio;
}

/* Moves all of from behind list's end. */
static inline void bio_list_splice(struct bio_list *list, struct bio_list *from)
{
	if (!from->head)
		return;
	if (list->head)
		list->tail->next = from->head;
	else
		list->head = from->head;
	list->tail = from->tail;
	from->head = NULL;
}

#endif
