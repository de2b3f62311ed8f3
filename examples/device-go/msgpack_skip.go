package main

// skip reads a value of any type, at most depth arrays deep.
func (u *unpacker) skip(depth int) {
	if u.bad != nil || len(u.b) == 0 || depth == 0 {
		u.fail()
		return
	}
	head := u.b[0]
	switch {
	case head < 0x80 || head >= 0xe0 || head == 0xc0 || head == 0xc2 || head == 0xc3:
		u.take(1)
	case head&0xe0 == 0xa0 || head >= 0xd9 && head <= 0xdb:
		u.text()
	case head >= 0xc4 && head <= 0xc6:
		u.bytes()
	case head&0xf0 == 0x90 || head == 0xdc || head == 0xdd:
		u.skipMany(uint64(u.array()), depth)
	case head&0xf0 == 0x80:
		u.take(1)
		u.skipMany(2*uint64(head&0x0f), depth)
	case head == 0xde || head == 0xdf:
		u.take(1)
		u.skipMany(2*u.number(2<<(head-0xde)), depth)
	case head == 0xca || head == 0xcb:
		u.take(1 + 4<<(head-0xca))
	case head >= 0xcc && head <= 0xcf:
		u.take(1 + 1<<(head-0xcc))
	case head >= 0xd0 && head <= 0xd3:
		u.take(1 + 1<<(head-0xd0))
	case head >= 0xd4 && head <= 0xd8:
		u.take(2 + 1<<(head-0xd4))
	case head >= 0xc7 && head <= 0xc9:
		u.take(1)
		u.take(1 + u.number(1<<(head-0xc7)))
	default:
		u.fail()
	}
}

func (u *unpacker) skipMany(count uint64, depth int) {
	for ; count > 0 && u.bad == nil; count-- {
		u.skip(depth - 1)
	}
}
