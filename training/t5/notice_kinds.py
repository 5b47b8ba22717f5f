"""The kinds of notices: their facts, the ways to say each, and their summaries."""

from __future__ import annotations

from training.t5.notices import CAUSES, EVENTS, GOODS, MEETINGS, PLACES, SERVICES, Facts, Kind

KINDS = {
    "moved": Kind(
        {
            "what": lambda f: f.pick(MEETINGS),
            "old": Facts.day,
            "new": Facts.day,
            "time": Facts.time,
            "room": Facts.room,
        },
        (
            (
                "The {what} planned for {old} has been moved to {new}.",
                "The {what} will take place on {new} instead of {old}.",
                "We have to move the {what} from {old} to {new}.",
                "Instead of {old}, the {what} is now on {new}.",
            ),
            ("It starts at {time}.", "The new time is {time}.", "Please be there at {time}.", "We begin at {time}."),
            (
                "We meet in room {room}.",
                "The room is {room}.",
                "Please come to room {room}.",
                "Room {room} is reserved.",
            ),
        ),
        "Moved: {what} from {old} to {new}, {time}, room {room}.",
    ),
    "cancelled": Kind(
        {
            "what": lambda f: f.pick(MEETINGS + EVENTS),
            "day": Facts.day,
            "cause": lambda f: f.pick(CAUSES),
            "name": Facts.name,
        },
        (
            (
                "The {what} on {day} is cancelled.",
                "Unfortunately, the {what} on {day} cannot take place.",
                "There will be no {what} on {day}.",
                "We had to cancel the {what} on {day}.",
            ),
            ("The reason is {cause}.", "This is because of {cause}.", "We must do this due to {cause}."),
            ("Please contact {name}.", "Your contact is {name}.", "{name} answers all questions.", "Write to {name}."),
        ),
        "Cancelled: {what} on {day} because of {cause}; contact {name}.",
    ),
    "delivery": Kind(
        {
            "goods": lambda f: f.pick(GOODS),
            "code": Facts.code,
            "day": Facts.day,
            "begin": Facts.time,
            "end": Facts.later,
            "firm": Facts.firm,
        },
        (
            (
                "Your {goods} is on its way.",
                "We have shipped your {goods}.",
                "Your {goods} has left our warehouse.",
                "Your new {goods} will arrive soon.",
            ),
            (
                "The order number is {code}.",
                "Your order: {code}.",
                "This is order {code}.",
                "Please quote order {code}.",
            ),
            (
                "{firm} will bring it on {day} between {begin} and {end}.",
                "Expect {firm} on {day} from {begin} to {end}.",
                "On {day}, between {begin} and {end}, {firm} will ring.",
                "The driver of {firm} comes between {begin} and {end} on {day}.",
            ),
        ),
        "Delivery: {goods} ({code}) by {firm} on {day}, {begin} to {end}.",
    ),
    "outage": Kind(
        {
            "service": lambda f: f.pick(SERVICES),
            "street": Facts.street,
            "cause": lambda f: f.pick(CAUSES),
            "day": Facts.day,
            "begin": Facts.time,
            "end": Facts.later,
        },
        (
            (
                "On {day}, there will be no {service} in {street} Street.",
                "We must turn off the {service} in {street} Street on {day}.",
                "The {service} in {street} Street will not work on {day}.",
                "{street} Street has no {service} on {day}.",
            ),
            (
                "It lasts from {begin} to {end}.",
                "The outage begins at {begin} and ends at {end}.",
                "By {end} everything will work again; it starts at {begin}.",
                "Please plan for {begin} to {end}.",
            ),
            ("The reason is {cause}.", "This is because of {cause}.", "We must do this due to {cause}."),
        ),
        "Outage: no {service} in {street} Street on {day}, {begin} to {end}, because of {cause}.",
    ),
    "trip": Kind(
        {
            "town": Facts.town,
            "day": Facts.day,
            "begin": Facts.time,
            "end": Facts.later,
            "place": lambda f: f.pick(PLACES),
            "price": Facts.price,
        },
        (
            (
                "We are going to {town} on {day}.",
                "On {day} there is a trip to {town}.",
                "Join our trip to {town} on {day}.",
                "Our next trip takes us to {town}; the day is {day}.",
            ),
            (
                "The bus leaves the {place} at {begin}.",
                "We leave at {begin} from the {place}.",
                "Meet us at the {place}; we leave at {begin}.",
            ),
            ("We will be back at {end}.", "The return is at {end}.", "Expect to be home by {end}."),
            ("The trip costs {price}.", "The price is {price} per person.", "Please pay {price} in advance."),
        ),
        "Trip: {town} on {day}, leaves {place} at {begin}, back at {end}, {price}.",
    ),
    "invoice": Kind(
        {
            "firm": Facts.firm,
            "number": Facts.code,
            "total": Facts.price,
            "date": Facts.date,
            "goods": lambda f: f.pick(GOODS),
        },
        (
            (
                "{firm} sends you invoice {number}.",
                "This is invoice {number} from {firm}.",
                "Invoice {number} from {firm} is ready.",
                "Please find invoice {number} of {firm}.",
            ),
            (
                "The total is {total}.",
                "You owe us {total}.",
                "The amount due is {total}.",
                "In all, this comes to {total}.",
            ),
            (
                "Please pay by {date}.",
                "It is due on {date}.",
                "The money must arrive by {date}.",
                "You have until {date} to pay.",
            ),
            (
                "You bought a {goods}.",
                "It is for a {goods}.",
                "The item is a {goods}.",
                "We charge you for one {goods}.",
            ),
        ),
        "Invoice: {total} to {firm} by {date} for {goods} ({number}).",
    ),
    "event": Kind(
        {
            "what": lambda f: f.pick(EVENTS),
            "day": Facts.day,
            "time": Facts.time,
            "place": lambda f: f.pick(PLACES),
            "price": Facts.price,
        },
        (
            (
                "You are invited to the {what} on {day}.",
                "The {what} takes place on {day}.",
                "On {day} we hold our {what}.",
                "Do not miss the {what} on {day}.",
            ),
            ("It is at the {place}.", "Come to the {place}.", "The place is the {place}.", "We meet at the {place}."),
            ("The doors open at {time}.", "It begins at {time}.", "Be there at {time}.", "The start is at {time}."),
            ("Admission is {price}.", "A ticket costs {price}.", "You pay {price} at the door.", "Entry: {price}."),
        ),
        "Event: {what} on {day} at {time}, {place}, {price}.",
    ),
    "closed": Kind(
        {
            "street": Facts.street,
            "begin": Facts.date,
            "end": Facts.later_date,
            "cause": lambda f: f.pick(CAUSES),
            "other": Facts.street,
        },
        (
            (
                "{street} Street will be closed from {begin} to {end}.",
                "From {begin} to {end}, {street} Street is closed.",
                "Nobody can drive through {street} Street from {begin} until {end}.",
            ),
            ("The reason is {cause}.", "This is because of {cause}.", "We must do this due to {cause}."),
            (
                "Please use {other} Street.",
                "Drivers should take {other} Street.",
                "A detour leads through {other} Street.",
            ),
        ),
        "Closed: {street} Street from {begin} to {end} because of {cause}; use {other} Street.",
    ),
    "found": Kind(
        {
            "goods": lambda f: f.pick(GOODS),
            "place": lambda f: f.pick(PLACES),
            "day": Facts.weekday,
            "name": Facts.name,
            "number": Facts.number,
        },
        (
            (
                "A {goods} was found at the {place} on {day}.",
                "On {day} somebody left a {goods} at the {place}.",
                "We found a {goods} on {day}; it was at the {place}.",
            ),
            ("{name} is keeping it.", "It is now with {name}.", "Ask for {name}.", "You can get it from {name}."),
            ("The phone number is {number}.", "Please call {number}.", "Dial {number}.", "Our number: {number}."),
        ),
        "Found: {goods} at the {place} on {day}; call {name}, {number}.",
    ),
    "job": Kind(
        {
            "firm": Facts.firm,
            "town": Facts.town,
            "role": lambda f: f.pick(("cook", "driver", "nurse", "teacher", "clerk", "gardener", "baker", "editor")),
            "pay": Facts.wage,
            "date": Facts.date,
        },
        (
            (
                "{firm} is looking for a {role}.",
                "{firm} wants to hire a {role}.",
                "{firm} offers work as a {role}.",
                "A {role} is needed at {firm}.",
            ),
            ("The job is in {town}.", "You will work in {town}.", "The place of work is {town}."),
            ("We pay {pay} a week.", "The pay is {pay} a week.", "You earn {pay} a week."),
            ("Apply by {date}.", "Send your application before {date}.", "Applications are open until {date}."),
        ),
        "Job: {role} at {firm} in {town}, {pay} a week, apply by {date}.",
    ),
}
