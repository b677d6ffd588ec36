//! MiniMalloc files: what is read, what is written, and one refusal for each limit and rule.

#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(missing_docs)]

use loadmaster_alloc::pack::csv::{Column, CsvError, CsvFault, CsvProblem, MAX_BUFFERS, MAX_FILE_BYTES, MAX_ID_LEN};
use loadmaster_alloc::pack::{Effort, PackBuffer, check, pack};
use loadmaster_graph::{Align, Bytes, Step};

fn refused(file: &str) -> CsvError {
    CsvProblem::parse(file.as_bytes()).unwrap_err()
}

fn assert_refused(file: &str, line: u32, column: u32, fault: CsvFault) {
    assert_eq!(refused(file), CsvError { line, column, fault });
}

#[test]
fn columns_are_read_by_name_in_any_order() {
    let file = "size,upper , lower,id,alignment,offset\r\n\n 10 ,5,2,a,,\r\n20,9,2, second ,8,40\n";
    let read = CsvProblem::parse(file.as_bytes()).unwrap();
    let a = PackBuffer::new(Bytes(10), Align::ONE, Step(2)..Step(5));
    let second = PackBuffer {
        size: Bytes(20),
        align: Align::new(8).unwrap(),
        lifetime: Step(2)..Step(9),
        offset: Some(Bytes(40)),
    };
    assert_eq!(read.problem.buffers, [a, second]);
    assert_eq!(read.ids, ["a".into(), "second".into()]);
    assert_eq!(read.lines, [3, 4]);
}

#[test]
fn a_written_file_reads_as_the_same_problem_with_every_offset_fixed() {
    let file = "id,lower,upper,size,alignment\nx,0,3,10,\ny,1,4,6,4\nempty,2,2,5,\nnothing,0,4,0,\n";
    let read = CsvProblem::parse(file.as_bytes()).unwrap();
    let packing = pack(&read.problem, Effort::Default).unwrap();
    let written = read.with_offsets(&packing);
    let again = CsvProblem::parse(written.as_bytes()).unwrap();
    assert_eq!(again.ids, read.ids);
    for ((a, b), place) in again.problem.buffers.iter().zip(&read.problem.buffers).zip(&packing.places) {
        assert_eq!(*a, PackBuffer { offset: Some(place.offset), ..b.clone() });
    }
    let fixed = pack(&again.problem, Effort::Default).unwrap();
    check(&again.problem, &fixed).unwrap();
    assert_eq!(fixed.places, packing.places);
}

#[test]
fn a_file_without_alignments_is_written_with_the_columns_of_minimalloc() {
    let read = CsvProblem::parse(b"id,lower,upper,size\n7,0,2,3\n").unwrap();
    let packing = pack(&read.problem, Effort::Default).unwrap();
    assert_eq!(read.with_offsets(&packing), "id,lower,upper,size,offset\n7,0,2,3,0\n");
}

#[test]
fn an_empty_file_is_refused() {
    assert_refused("", 1, 1, CsvFault::NoHeader);
    assert_refused("\n  \r\n", 1, 1, CsvFault::NoHeader);
}

#[test]
fn unknown_missing_and_doubled_columns_are_refused() {
    assert_refused("id,lower,upper,bytes\n", 1, 16, CsvFault::UnknownColumn { name: "bytes".into() });
    assert_refused("\nid,lower,size\n", 2, 1, CsvFault::MissingColumn { column: Column::Upper });
    assert_refused("id,lower,upper,size,lower\n", 1, 21, CsvFault::ColumnTwice { column: Column::Lower });
}

#[test]
fn a_line_with_another_number_of_cells_is_refused() {
    assert_refused("id,lower,upper,size\n1,2,3\n", 2, 1, CsvFault::Cells { found: 3, expected: 4 });
    assert_refused("id,lower,upper,size\n1,2,3,4,5\n", 2, 1, CsvFault::Cells { found: 5, expected: 4 });
}

#[test]
fn what_is_no_number_in_range_is_refused_at_its_place() {
    let number = |column, text: &str, max| CsvFault::Number { column, text: text.into(), max };
    let steps = u64::from(u32::MAX);
    assert_refused("id,lower,upper,size\na,0,1,-4\n", 2, 7, number(Column::Size, "-4", u64::MAX));
    assert_refused("id,lower,upper,size\na,0,1,+4\n", 2, 7, number(Column::Size, "+4", u64::MAX));
    assert_refused("id,lower,upper,size\na,0,1,\n", 2, 7, number(Column::Size, "", u64::MAX));
    assert_refused("id,lower,upper,size\nä,4294967296,1,4\n", 2, 3, number(Column::Lower, "4294967296", steps));
    let huge = "18446744073709551616";
    assert_refused(&format!("id,lower,upper,size\na,0,1,{huge}\n"), 2, 7, number(Column::Size, huge, u64::MAX));
    let long = "9".repeat(100);
    let short = format!("{}…", "9".repeat(40));
    assert_refused(&format!("id,lower,upper,size\na,0,1,{long}\n"), 2, 7, number(Column::Size, &short, u64::MAX));
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    let file = "id,lower,upper,size,alignment\na,0,1,4,12\n";
    assert_refused(file, 2, 9, CsvFault::Alignment { value: 12 });
}

#[test]
fn a_lifetime_that_ends_before_it_begins_is_refused() {
    assert_refused("id,lower,upper,size\na,5,4,4\n", 2, 5, CsvFault::Reversed { lower: 5, upper: 4 });
}

#[test]
fn empty_long_and_doubled_ids_are_refused() {
    assert_refused("id,lower,upper,size\n ,5,6,4\n", 2, 1, CsvFault::EmptyId);
    let id = "i".repeat(MAX_ID_LEN + 1);
    assert_refused(&format!("id,lower,upper,size\n{id},5,6,4\n"), 2, 1, CsvFault::IdTooLong { bytes: MAX_ID_LEN + 1 });
    let twice = "id,lower,upper,size\na,5,6,4\nb,5,6,4\na,7,8,4\n";
    assert_refused(twice, 4, 1, CsvFault::IdTwice { id: "a".into(), first: 2 });
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let error = CsvProblem::parse(b"id,lower,upper,size\na,0,1,4\nb\xff,0,1,4\n").unwrap_err();
    assert_eq!(error, CsvError { line: 3, column: 2, fault: CsvFault::NotUtf8 });
}

#[test]
fn a_file_beyond_the_limits_is_refused() {
    let bytes = MAX_FILE_BYTES + 1;
    let error = CsvProblem::parse(&vec![b' '; bytes]).unwrap_err();
    assert_eq!(error.fault, CsvFault::FileTooLong { bytes });
    let mut file = String::from("id,lower,upper,size\n");
    for i in 0..=MAX_BUFFERS {
        file.push_str(&i.to_string());
        file.push_str(",0,1,1\n");
    }
    let error = refused(&file);
    assert_eq!((error.line as usize, error.fault), (MAX_BUFFERS + 2, CsvFault::TooManyBuffers));
}

#[test]
fn messages_say_where_and_what_is_wanted() {
    let error = refused("id,lower,upper,size\na,0,x,4\n");
    let text = "line 2, column 5: `upper` is `x`: a whole number from 0 to 4294967295 is wanted";
    assert_eq!(error.to_string(), text);
}
