/* Messages around a ring, and collectives on the rows and columns of a grid: mpicc ring.c, mpirun -n 4 ./a.out */
#include <mpi.h>

int main(int argc, char **argv) {
    int rank, size, x[8] = {0}, y[8] = {0}, done = 0;
    MPI_Request requests[2];
    MPI_Comm copy, row, column;
    MPI_Status status;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &row);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &column);
    for (int i = 0; i < 3; i++) {
        MPI_Irecv(y, 8, MPI_INT, (rank + size - 1) % size, 1, copy, &requests[0]);
        MPI_Isend(x, 8, MPI_INT, (rank + 1) % size, 1, copy, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Allreduce(x, y, 4, MPI_INT, MPI_SUM, row);
        MPI_Bcast(x, 2, MPI_INT, 0, column);
    }
    MPI_Irecv(y, 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
    MPI_Send(x, 2, MPI_INT, (rank + 1) % size, 3, MPI_COMM_WORLD);
    while (!done) {
        MPI_Test(&requests[0], &done, &status);
    }
    MPI_Sendrecv(x, 3, MPI_INT, rank + 1 < size ? rank + 1 : MPI_PROC_NULL, 0, y, 3, MPI_INT,
                 rank ? rank - 1 : MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status);
    if (rank == 0) {
        MPI_Probe(1, 5, MPI_COMM_WORLD, &status);
        MPI_Recv(y, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, &status);
    }
    if (rank == 1) {
        MPI_Send(x, 1, MPI_INT, 0, 5, MPI_COMM_WORLD);
    }
    MPI_Comm_free(&row);
    MPI_Finalize();
    return 0;
}
